"""S3 by two clients: obstore, and boto3 for what obstore cannot carry."""
