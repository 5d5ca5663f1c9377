"""The current request and its trace."""
