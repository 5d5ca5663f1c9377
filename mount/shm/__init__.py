"""Tables in shared memory that outlive any single process of a mount."""
