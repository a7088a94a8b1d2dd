"""Requests and responses as HTTP has them: bodies, errors, events, deadlines."""
