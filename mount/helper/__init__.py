"""The mount helper, which mounts for programs with threads, such as the mount service."""
