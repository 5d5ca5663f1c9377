"""Commits changes on top of a base commit, without reading what did not change."""
