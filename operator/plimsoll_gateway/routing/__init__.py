"""Choice of the replica for a request: scorers, loads, prefix and response affinity, health probes."""
