"""Transfers repositories from one store to another: directly, or in a file."""
