"""Figures that programs of a node count in files, for the proxy and others to read."""
