"""Builders of the objects that the operator creates: pure functions of a spec."""
