"""how a host runs engines."""
