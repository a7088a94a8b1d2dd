"""The cost of traces and logs."""
