"""The page of a job: what its status says, as HTML and SVG. Served by `server/web`, written to a file by a report."""
