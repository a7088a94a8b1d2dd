"""The device that computes: its selection, its errors, and diagnostics before anything is computed."""
