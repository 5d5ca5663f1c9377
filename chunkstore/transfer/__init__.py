"""Repositories on their way from one store to another: directly, or in a file."""
