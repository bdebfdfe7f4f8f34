"""What a daemon tells monitoring systems: Prometheus' text, OpenTelemetry's metrics and traces."""
