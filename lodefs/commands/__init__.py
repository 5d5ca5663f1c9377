"""The commands; a module is imported when one of its commands runs."""
