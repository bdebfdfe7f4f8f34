"""Page of a job: the status as HTML and SVG. Served by `server/web`, written to a file by a report."""
