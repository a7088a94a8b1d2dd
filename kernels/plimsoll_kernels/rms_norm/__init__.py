"""Root mean square norm (Zhang and Sennrich, 2019), with the residual sum that precedes it in a decoder."""
