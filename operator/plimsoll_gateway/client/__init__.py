"""HTTP/1.1 as a client, as little of it as a relay needs: one request at a time on kept-alive connections."""
