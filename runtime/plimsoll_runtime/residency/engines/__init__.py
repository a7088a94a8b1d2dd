"""Runs the engines of a host."""
