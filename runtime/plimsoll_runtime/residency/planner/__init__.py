"""Decides which models are awake. Pure functions."""
