"""Hosts: the client of their API, their reports, and the ModelHosts that show them."""
