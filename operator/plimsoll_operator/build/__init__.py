"""Builders of the objects that the operator makes: pure functions from a spec."""
