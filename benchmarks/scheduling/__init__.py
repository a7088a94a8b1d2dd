"""Which policy serves whom how well? The real scheduler against a cost model of the engine."""
