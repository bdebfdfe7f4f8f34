"""Example programs: the main job on real data, the data, and runs under kills."""
