"""What the operating system gives: sockets, systemd, locks, limits, file writes."""
