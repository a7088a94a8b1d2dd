"""Measures how closely several gateways together keep the limits of a key."""
