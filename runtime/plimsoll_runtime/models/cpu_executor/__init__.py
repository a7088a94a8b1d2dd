"""a step in one C++ call (fused*, fuse*, fusable)."""
