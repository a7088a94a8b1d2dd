"""RuntimePools: their pods, and the models that are placed on them."""
