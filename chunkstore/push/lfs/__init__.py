"""Objects of Git LFS, and chunks of them, that a proxy takes from clients."""
