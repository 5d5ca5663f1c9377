"""Versions: stores, refs, history, reading packs and trees, verification."""
