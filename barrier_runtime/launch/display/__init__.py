"""What a person sees of a flow and its run: progress on a terminal, rows of a stream, a widget in a notebook."""
