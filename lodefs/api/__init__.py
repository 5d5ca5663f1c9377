"""The Python API: each function does what a command does. The command line calls these."""
