"""The cluster: which nodes there are, who owns what, and how nodes fetch from each other."""
