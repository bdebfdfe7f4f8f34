"""All keyed state of an operator subtask: opened, written, snapshotted, restored."""
