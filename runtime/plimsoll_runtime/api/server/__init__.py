"""The server process: config, state, listener, credentials, limits."""
