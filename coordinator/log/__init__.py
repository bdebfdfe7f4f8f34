"""Decision log of a job: records, their single writer, readers, and the manifests of records."""
