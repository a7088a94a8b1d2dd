"""HTTP/1.1 client for replicas: one request at a time on kept-alive connections."""
