"""Example programs: the main job on real data, its data, and runs under kills."""
