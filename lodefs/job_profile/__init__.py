"""Shows what a job does on a mount, and what it waits for."""
