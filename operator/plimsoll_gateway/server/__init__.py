"""The process: options, servers, the bound on connections, CORS."""
