"""Fair queues: requests of a full model wait, and start in proportion to the weights of their keys."""
