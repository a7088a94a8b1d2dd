"""Where a model's files come from and how their tensors are read."""
