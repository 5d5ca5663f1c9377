"""The status page: its data about a node and its store, and its files for browsers."""
