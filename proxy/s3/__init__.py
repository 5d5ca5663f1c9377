"""A read-only S3 interface: requests, signatures, listings, objects, as S3's clients want them."""
