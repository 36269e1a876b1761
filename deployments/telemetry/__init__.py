"""Telemetry of a running application: metrics, traces, and one log line per search."""
