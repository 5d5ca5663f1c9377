"""Ranges of objects: what is asked for, how it travels, and how answers are read."""
