"""Tables in shared memory that outlive any one process of a mount."""
