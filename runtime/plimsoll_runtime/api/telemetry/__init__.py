"""How much waits, how fast it goes, and who is told."""
