"""an engine as its callers see it."""
