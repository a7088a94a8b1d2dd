"""HTTP/1.1 to replicas: one request at a time on connections that are kept alive."""
