"""The driver for Kubernetes (Container Storage Interface), over the mount service."""
