"""Page of a job: the status as HTML and SVG."""
