"""Looks for what is wrong on a node: each check says what it saw and how to fix it."""
