"""Grafana dashboards, declared as data and generated into the chart's files."""
