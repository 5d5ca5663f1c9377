"""The file system, and the worker that answers the kernel."""
