"""Thread pools, processes and retries: the base of the whole proxy."""
