"""Root works where an ordinary user changes paths all the time: what root touches elsewhere."""
