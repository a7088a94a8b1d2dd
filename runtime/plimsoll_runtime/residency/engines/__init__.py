"""How a host runs engines."""
