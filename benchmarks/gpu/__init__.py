"""How near our kernels and steps come to a GPU's limits, on the shape of a model of 8 billion parameters."""
