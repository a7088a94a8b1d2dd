"""The gateway's process: options, servers, connection limit, CORS."""
