"""torch parts that ops call (vLLM: model_executor/layers)."""
