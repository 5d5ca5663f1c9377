"""Reads snapshots for a program, from the node's cache files first, then from its proxy."""
