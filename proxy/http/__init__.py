"""The HTTP server: endpoints, admission, tokens, connections."""
