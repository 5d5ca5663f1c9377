"""Directories in the node's index: loaded from the store once, for all who want them."""
