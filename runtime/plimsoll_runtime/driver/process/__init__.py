"""The engine process, its parent's side of it, and the processes that create it."""
