"""What recurrent layers knew at the borders of blocks: which borders are kept, and where, as names and numbers."""
