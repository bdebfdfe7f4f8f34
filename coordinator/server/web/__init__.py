"""The page over HTTP: who may see it, its routes, and the stream that keeps open pages up to date."""
