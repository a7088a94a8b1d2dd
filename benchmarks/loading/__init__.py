"""The peak memory of loading a model, relative to the memory it keeps."""
