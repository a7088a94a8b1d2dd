"""Laptop mode: runs the cluster's YAML files as local processes."""
