"""Tool-call formats, one file per format."""
