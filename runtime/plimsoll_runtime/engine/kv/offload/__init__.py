"""Where KV blocks go that the device has no room for, as names and numbers."""
