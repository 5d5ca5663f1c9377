"""A node's cache as bytes on disk: its layout, its index, and reading it."""
