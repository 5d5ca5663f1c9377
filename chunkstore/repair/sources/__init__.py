"""Where a repair finds lost bytes: another store, a node's cache or proxy, a directory."""
