"""What a decoder does: each file has an op's record, its tensors, what it costs, and what it means in torch."""
