"""Data processes: they fetch, verify, decompress and write; the proxy's own process decides."""
