"""Datasets from Git repositories: fetched without trust, listed, and committed."""
