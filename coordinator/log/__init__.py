"""Decision log of a job: the records, their single writer, their readers, and the manifests that records name."""
