"""The sources of a repair: another store, a node's cache or proxy, a directory."""
