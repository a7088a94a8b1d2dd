"""Which decodes of a step begin with the same blocks, and whether it pays to read those once for all of them."""
