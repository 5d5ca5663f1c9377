"""Repositories of DVC as sources of a push: pointers become the files that they name."""
