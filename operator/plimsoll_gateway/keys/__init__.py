"""API keys: records, limits, the folder that holds them, and authentication."""
