"""Tool calls: how models write them, parsers for their output, and grammars that keep calls valid."""
