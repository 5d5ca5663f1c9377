"""Interfaces of the operating system: sockets, systemd, locks, limits, file writes."""
