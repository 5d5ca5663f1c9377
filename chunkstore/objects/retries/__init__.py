"""Calls that are repeated, and the pace at which a store is asked."""
