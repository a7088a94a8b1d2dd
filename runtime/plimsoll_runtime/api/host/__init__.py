"""Many models in one server: requests by name, and the host API by which others place them."""
