"""The page over HTTP: access control, routes, and the stream that updates open pages."""
