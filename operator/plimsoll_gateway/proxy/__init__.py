"""A request on its way to a replica, and the response on its way back."""
