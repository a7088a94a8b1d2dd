"""The gateway under its chart's memory limit while clients do their worst."""
