"""the cache's memory."""
