"""The parts that decodes and chunks have in common."""
