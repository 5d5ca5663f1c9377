"""Finds what a store has lost or damaged, and restores it from whatever has the bytes."""
