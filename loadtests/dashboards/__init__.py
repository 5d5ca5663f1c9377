"""Dashboards and alerts against a real Prometheus that watches a real cluster."""
