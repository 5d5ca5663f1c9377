"""The Git LFS server: objects and locks of Git repositories, kept in the store."""
