"""The front door: the command line. Thin."""
