"""The node's mounts, shared by all users: one for each snapshot, held while it has users."""
