"""Clients of an engine: for asyncio, blocking, and in this process."""
