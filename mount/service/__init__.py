"""The node's mounts, shared by all who ask for them: one for each snapshot, held for its users."""
