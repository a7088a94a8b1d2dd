"""The engine: requests, KV blocks and the scheduler, in pure Python over integers."""
