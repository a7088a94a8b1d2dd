"""An hour of mixed load, looking for leaks, drift, and changed outputs after a long time."""
