"""Models as data: config families, decoder specs, programs of ops, and the executors that run them."""
