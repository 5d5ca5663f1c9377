"""Proxies that commands find, start and keep."""
