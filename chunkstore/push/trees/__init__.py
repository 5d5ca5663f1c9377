"""The directories of a push: their digests, and their trees in packs."""
