"""Grafana dashboards and Prometheus alerts. ``python -m cluster.dashboards`` writes ``grafana/*.json``; the alerts are
written by hand (``alerts.yaml``), explained in ``docs/monitoring.md``."""
