"""Requests and answers as HTTP has them: bodies, errors, events, sockets."""
