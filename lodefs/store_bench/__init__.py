"""What a store can do, measured: first byte, throughput by concurrency, listing, writing."""
