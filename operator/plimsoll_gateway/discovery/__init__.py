"""The routing table: models and replicas, from the cluster or from a file."""
