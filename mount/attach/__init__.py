"""Hands the node's mounts to users without privilege, as descriptors over a socket."""
