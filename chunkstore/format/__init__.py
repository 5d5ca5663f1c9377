"""The bytes of a store: names, keys, packs, trees, commits, index shards. Pure."""
