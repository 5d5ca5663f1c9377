"""Jobs that fill the cache ahead of reads, and the removal of datasets from it."""
