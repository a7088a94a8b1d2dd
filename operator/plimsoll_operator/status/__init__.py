"""Conditions, reasons, events and the status of a ModelDeployment."""
