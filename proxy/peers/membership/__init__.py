"""The members of the cluster, their addresses and their state."""
