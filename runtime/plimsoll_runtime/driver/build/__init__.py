"""an engine is built in stages."""
