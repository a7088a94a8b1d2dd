"""Builds an engine in stages: model facts, loading, memory plan, assembly, warm-up."""
