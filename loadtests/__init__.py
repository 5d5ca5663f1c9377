"""Benchmarks and load tests, and the real servers that tests share with them (services/)."""
