"""Data processes fetch, verify, decompress and write; the proxy's own process decides."""
