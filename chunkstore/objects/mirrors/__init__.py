"""Stores with copies: reads fail over between them."""
