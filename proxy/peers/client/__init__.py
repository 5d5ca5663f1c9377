"""What this node asks of other nodes."""
