"""Finds what a store has lost or damaged, and puts it back from whatever has the bytes."""
