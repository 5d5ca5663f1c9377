"""A node's cache on disk: its layout, its index, and how it is read."""
