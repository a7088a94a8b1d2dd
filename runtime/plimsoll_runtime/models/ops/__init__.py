"""Ops of a decoder. Each file has an op's record, its tensors, its cost, its torch code and its lowering to the CPU."""
