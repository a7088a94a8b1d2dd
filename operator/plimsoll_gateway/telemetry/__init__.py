"""Metrics of the gateway."""
