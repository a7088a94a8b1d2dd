"""What a server says of itself: models, paths, parameters."""
