"""HTTP: the OpenAI-compatible API of one runtime."""
