"""The contract with a node's proxy, and its synchronous clients."""
