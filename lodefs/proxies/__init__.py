"""Finds, starts and keeps the proxies that commands use."""
