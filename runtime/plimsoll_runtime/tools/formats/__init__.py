"""How models write calls: one format a file."""
