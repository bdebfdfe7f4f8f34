"""The decision log of a job: its records, its one writer, its readers, and the manifests it names."""
