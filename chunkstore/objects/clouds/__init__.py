"""Stores on Google Cloud Storage and Azure Blob, asked over HTTP."""
