"""Finds what a store has lost or spoilt, and puts it back from whatever has the bytes."""
