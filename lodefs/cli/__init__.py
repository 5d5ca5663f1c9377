"""The parts that commands share: options, exit codes, progress bars, text."""
