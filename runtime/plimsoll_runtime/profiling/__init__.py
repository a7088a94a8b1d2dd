"""`plimsoll profile`: the engine on a synthetic batch, its time by phase and op beside what the machine allows."""
