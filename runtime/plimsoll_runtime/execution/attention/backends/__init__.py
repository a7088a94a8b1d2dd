"""The attention backends, in one module for each library or kind of kernels."""
