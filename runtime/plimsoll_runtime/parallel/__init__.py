"""Parallel groups: the part of a model that each rank computes, and the exchange between ranks."""
