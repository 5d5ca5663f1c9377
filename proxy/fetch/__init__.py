"""From a missing chunk to the cache: single flight, pack sources, known damage."""
