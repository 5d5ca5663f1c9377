"""Mounts for programs with threads, such as the Docker plugin."""
