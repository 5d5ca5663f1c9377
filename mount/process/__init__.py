"""Starts a mount, keeps it alive whatever process dies, and ends it."""
