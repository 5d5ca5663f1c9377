"""Listings of buckets: keys in S3's order, their pages, and tokens of where these end."""
