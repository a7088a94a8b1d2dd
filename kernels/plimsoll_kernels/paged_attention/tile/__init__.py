"""What decodes and chunks have in common."""
