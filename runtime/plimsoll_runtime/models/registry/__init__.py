"""Which family and which task a checkpoint has."""
