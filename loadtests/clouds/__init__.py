"""Stores on real servers: emulators of Google Cloud Storage and Azure, and servers like S3."""
