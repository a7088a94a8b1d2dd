"""The gateway under abuse, with its chart's memory limit."""
