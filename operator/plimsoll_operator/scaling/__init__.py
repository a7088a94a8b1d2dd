"""How many replicas a model wants: what gateways report, a pure rule with reasons, and its history."""
