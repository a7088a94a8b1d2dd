"""Operations on tensors: each with a plain reference, kernels, and a checked entry point."""
