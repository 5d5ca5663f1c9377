"""Writable mounts: an overlay of the kernel over a snapshot, with changes on a local disk."""
