"""Dashboards, alerts and recording rules for lodefs' metrics (docs/metrics.md)."""
