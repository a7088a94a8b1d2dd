"""API keys: records, limits, the folder of key files, and authentication."""
