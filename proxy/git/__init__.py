"""Imports of commits of Git that somebody mounts by the URL of a Git repository."""
