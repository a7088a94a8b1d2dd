"""helpers without a layer of their own."""
