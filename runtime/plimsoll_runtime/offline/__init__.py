"""offline inference: the LLM class."""
