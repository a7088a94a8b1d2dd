"""The gateway: one OpenAI endpoint for all models of its namespaces."""
