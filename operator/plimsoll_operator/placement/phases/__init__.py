"""The phases of a plan."""
