"""Checks of what a store holds: that all can be reached, and that bytes are right."""
