"""What keeps a store that lives for years small: gc."""
