"""Which replica a request goes to: what is known of each, and what the request would find there."""
