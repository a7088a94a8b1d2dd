"""The cost of many models: the operator's requests to the API server, and the gateway's routing table."""
