"""Pull: makes a directory of a commit."""
