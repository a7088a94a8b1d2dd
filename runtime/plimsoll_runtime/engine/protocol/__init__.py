"""records that cross a border: server/engine, scheduler/runner."""
