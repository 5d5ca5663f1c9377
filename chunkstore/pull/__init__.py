"""A commit becomes a directory."""
