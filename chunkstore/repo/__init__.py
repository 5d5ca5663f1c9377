"""Versions: stores, refs, history, reading of packs and trees."""
