"""Runs an engine in a process: builds it, starts child processes, and provides clients."""
