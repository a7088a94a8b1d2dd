"""drives models between sleep levels."""
