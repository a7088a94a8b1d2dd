"""Laptop mode: the cluster's YAML, run as processes."""
