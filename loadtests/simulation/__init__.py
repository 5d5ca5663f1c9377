"""A cluster on a virtual clock: thousands of nodes that run the policy code of proxy/peers."""
