"""The processes of a push that read, cut, hash and compress files."""
