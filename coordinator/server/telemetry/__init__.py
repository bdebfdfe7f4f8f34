"""Exports of a daemon for monitoring systems: Prometheus' text, OpenTelemetry's metrics and traces."""
