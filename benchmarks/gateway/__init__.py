"""The cost of a request in the gateway."""
