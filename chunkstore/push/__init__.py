"""A directory becomes a commit."""
