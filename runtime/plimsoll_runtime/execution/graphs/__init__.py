"""CUDA graphs: of decodes, of the work between attention calls, and of sampling."""
