"""Barrier alignment: state machines, pure."""
