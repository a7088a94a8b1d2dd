"""HTTP requests and responses: bodies, errors, events, deadlines."""
