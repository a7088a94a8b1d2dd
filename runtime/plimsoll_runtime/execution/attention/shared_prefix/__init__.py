"""Groups the decodes of a step that begin with the same blocks, if reading those blocks once for all saves time."""
