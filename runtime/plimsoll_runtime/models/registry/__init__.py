"""which family and task a checkpoint is."""
