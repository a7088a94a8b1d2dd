"""Budgets of API keys over several gateways: one of them owns each key's budget, and all hold shares of it."""
