"""The status page: what it shows of a node and its store, and the files that a browser loads."""
