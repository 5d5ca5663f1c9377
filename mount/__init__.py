"""The client side: a read-only file system over the node's proxy. Synchronous; knows no store."""
