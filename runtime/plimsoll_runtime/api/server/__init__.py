"""Who asks, and what they may: API keys, gateways, tenants."""
