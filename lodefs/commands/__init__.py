"""The commands of lodefs. Each module is imported when one of its commands runs."""
