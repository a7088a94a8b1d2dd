"""The scheduler: which sequences compute which tokens."""
