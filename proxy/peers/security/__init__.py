"""The authentication of nodes by each other: signed requests, certificates."""
