"""Which request, and which trace, what is done belongs to."""
