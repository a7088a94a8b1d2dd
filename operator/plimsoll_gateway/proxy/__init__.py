"""Forwards a request to a replica, and the response to the client."""
