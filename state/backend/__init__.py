"""All keyed state of one operator subtask: opened, written, snapshotted, restored."""
