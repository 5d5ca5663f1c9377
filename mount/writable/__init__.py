"""Writable mounts: an overlay of the kernel over a snapshot, whose changes lie on a local disk."""
