"""Files in folders and on S3."""
