"""The bodies of requests (pydantic, strict) and of answers (msgspec, fast)."""
