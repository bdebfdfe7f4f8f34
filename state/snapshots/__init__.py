"""Snapshots of state: what they consist of, how they are uploaded, verified and planned to be restored."""
