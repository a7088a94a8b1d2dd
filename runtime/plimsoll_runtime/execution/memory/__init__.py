"""how much memory there is and who gets it."""
