"""One product over rows that are sorted by group, each group with a matrix of its own: a mixture's experts."""
