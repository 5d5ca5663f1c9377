"""Packs that lie in crates: how they come there, and what is left of them there."""
