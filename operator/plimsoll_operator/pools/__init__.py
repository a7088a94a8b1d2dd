"""RuntimePools: their pods, what hosts report, and models that are placed on them."""
