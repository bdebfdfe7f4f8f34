"""S3 by two clients: obstore, and boto3 for requests that obstore cannot send."""
