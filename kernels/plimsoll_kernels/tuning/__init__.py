"""Measures the fastest launch configuration of a kernel once and stores it on disk."""
