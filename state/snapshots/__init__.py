"""Snapshots of state: content, upload, verification and restore plans."""
