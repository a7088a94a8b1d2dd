"""Answers that a schema, a pattern or a grammar accepts: compiled off the engine's thread, enforced token by token."""
