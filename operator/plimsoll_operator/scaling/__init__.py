"""Autoscaling: demand that gateways report, a pure rule with reasons, and its history."""
