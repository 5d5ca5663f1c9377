"""What commands share: options, exit codes, progress bars, text."""
