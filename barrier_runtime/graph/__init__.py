"""From the plan of a flow to the graph that slots run."""
