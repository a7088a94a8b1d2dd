"""HTTP: the OpenAI interface of one runtime."""
