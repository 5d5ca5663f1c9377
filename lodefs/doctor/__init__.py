"""What can be wrong on a node, looked for: each check says what it saw and how to mend it."""
