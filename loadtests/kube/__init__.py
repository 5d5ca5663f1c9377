"""A real Kubernetes of one node, with lodefs on it: for the demo, the tests and the figures."""
