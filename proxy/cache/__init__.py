"""The cache of chunks on disk, and its maintenance."""
