"""Reads bytes for a mount, and prefetches into the page cache."""
