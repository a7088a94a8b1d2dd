"""Mutants: changes of one operator that tests should notice. Shows which set of tests notices which."""
