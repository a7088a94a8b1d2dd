"""Other systems for comparison: installation, paths, and model conversion."""
