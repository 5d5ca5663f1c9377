"""Who is in the cluster, where, and in which state."""
