"""The client side: a read-only file system that uses the node's proxy, and knows no store."""
