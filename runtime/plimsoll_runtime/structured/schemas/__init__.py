"""JSON Schemas as clients send them, rewritten into what a grammar can enforce."""
