"""The token in which a uniform number falls."""
