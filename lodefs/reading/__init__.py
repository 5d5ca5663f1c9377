"""Reading snapshots from a program: the node's cache files first, then its proxy. Synchronous."""
