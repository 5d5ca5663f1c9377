"""Where bytes come from, and what is put into the page cache ahead."""
