"""Records that cross a border: between server and engine, and between scheduler and runner."""
