"""The cluster: its nodes, the owners of packs, and how nodes fetch from each other."""
