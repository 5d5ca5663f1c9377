"""The node's mounts for users without privilege, who get them as descriptors over a socket."""
