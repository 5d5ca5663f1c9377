"""S3: requests by boto3, ranged reads without it, and the names of its errors."""
