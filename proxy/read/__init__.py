"""Dataset files and directories, from the cache or by way of it."""
