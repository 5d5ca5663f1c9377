"""What systemd offers its services."""
