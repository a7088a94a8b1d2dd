"""The amount of Python in a decode step."""
