"""API keys: what they are, where they are kept, and who has shown one."""
