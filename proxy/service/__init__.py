"""The process: start, composition, logs, end."""
