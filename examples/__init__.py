"""Programs that show the library: the main job on real data, its data, and its run under kills."""
