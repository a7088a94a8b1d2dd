"""Whose turn it is where more is asked than the ready replicas can do."""
