"""A read-only S3 interface: requests, signatures, lists, objects, as S3 clients expect them."""
