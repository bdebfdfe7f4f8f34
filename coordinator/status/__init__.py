"""Public status of a job."""
