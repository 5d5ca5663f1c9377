"""What a node counts, and its metrics for Prometheus."""
