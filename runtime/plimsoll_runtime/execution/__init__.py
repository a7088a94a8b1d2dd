"""Runs a step's plan on a device: batch, attention, sampling."""
