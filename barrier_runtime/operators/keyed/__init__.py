"""What keyed operators share: life in snapshots, progress of event time by key group, timers, sweeps of expiry."""
