"""Upkeep of a store over years: gc, compaction, merging, purges and accounts."""
