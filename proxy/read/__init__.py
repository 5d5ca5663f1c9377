"""Dataset files and directories, from the cache or through it."""
