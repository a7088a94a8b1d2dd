"""The front door: one OpenAI endpoint for every model of its namespaces."""
