"""The mount helper: mounts for programs with threads, such as the mount service."""
