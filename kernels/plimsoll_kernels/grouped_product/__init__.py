"""One product over rows that are sorted by group, each group with a matrix of its own: the experts of a mixture."""
