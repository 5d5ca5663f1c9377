"""Writable mounts: where their changes lie, and how they are committed."""
