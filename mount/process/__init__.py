"""How a mount starts, lives on without any one process, and ends."""
