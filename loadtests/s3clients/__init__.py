"""Real S3 clients, each in an environment of its own, against the proxy's S3 interface."""
