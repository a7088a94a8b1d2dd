"""The types of requests (pydantic, strict) and of outputs (msgspec, fast)."""
