"""empty package: where drafters go (same note)."""
