"""Jobs that fill the cache ahead of reads, and what drops datasets from it."""
