"""Thread pools, counters, metrics, backoff: the base of the whole proxy."""
