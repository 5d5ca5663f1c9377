"""Where else a file is that verification found spoilt or purged."""
