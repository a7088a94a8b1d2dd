"""Many models in one server: requests by served name, and the host API that places them."""
