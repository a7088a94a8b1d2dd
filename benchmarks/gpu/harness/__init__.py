"""Checks and benchmarks of a device in parts with time limits, which resume after an interruption.

It imports only Python's standard library, because it runs before missing packages are installed.
"""
