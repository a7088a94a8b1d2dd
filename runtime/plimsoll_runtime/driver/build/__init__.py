"""An engine is built in stages: facts, loading, memory plan, assembly, warm-up."""
