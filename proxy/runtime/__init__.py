"""Thread pools, counters, metrics, backoff: what all of the proxy stands on."""
