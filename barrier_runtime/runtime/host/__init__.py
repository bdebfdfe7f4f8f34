"""What a slot takes from its process: time, timers, threads."""
