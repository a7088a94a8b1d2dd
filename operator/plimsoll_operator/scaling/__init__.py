"""How many replicas a model wants: what gateways say, a pure rule with reasons, and what it has to remember."""
