"""Which replica gets a request: scorers, loads, prefix and response affinity, health probes."""
