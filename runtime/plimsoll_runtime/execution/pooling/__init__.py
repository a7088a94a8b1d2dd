"""Prompts to vectors: what stands in the place of sampling where nothing is generated."""
