"""What a machine remembers of a store between its pushes, in one SQLite file."""
