"""Repositories of the Hugging Face Hub: pushed, or fetched for a node as its files arrive."""
