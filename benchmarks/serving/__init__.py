"""Serving speed compared with other systems. Workloads W1 to W4, alternating systems."""
