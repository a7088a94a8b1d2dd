"""What many models cost: the operator at the API server, and the gateway's table."""
