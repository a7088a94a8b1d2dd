"""The cost of sampling with various parameters."""
