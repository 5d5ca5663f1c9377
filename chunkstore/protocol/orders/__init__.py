"""Messages between a proxy and its processes that write into the store."""
