"""Packs that lie in composites: how they come there, and what is left of them there."""
