"""Metrics of servers and hosts, and the record of a request."""
