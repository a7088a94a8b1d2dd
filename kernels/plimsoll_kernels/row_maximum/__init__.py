"""The largest value of each row, and where it is."""
