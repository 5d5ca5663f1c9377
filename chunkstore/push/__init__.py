"""Push: makes commits of local directories and of lists of changes."""
