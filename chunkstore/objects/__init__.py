"""Object stores: S3, a directory, memory, and the wrappers around them."""
