"""Services of a slot's process: time, timers, threads, memory."""
