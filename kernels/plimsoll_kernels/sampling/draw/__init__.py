"""Finds the token in which a uniform number falls."""
