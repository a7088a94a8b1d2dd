"""A pool that is imagined: traces of requests, hosts that load and wake, and what a policy pays for them."""
