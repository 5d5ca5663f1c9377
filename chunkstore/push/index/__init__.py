"""The record that a machine keeps of a store between its pushes, in one SQLite file."""
