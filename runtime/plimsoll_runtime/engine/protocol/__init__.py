"""Records passed between server and engine, and between scheduler and runner."""
