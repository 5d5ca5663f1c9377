"""What this node does for other nodes."""
