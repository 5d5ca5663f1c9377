"""Counters that programs of a node keep in files, for the proxy and others to read."""
