"""An engine as its callers see it: for asyncio, blocking, and in this process."""
