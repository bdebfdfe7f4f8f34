"""Process of the coordinator: the edge around `job`."""
