"""Paged attention to blocks with which the tables of several decodes begin: read once for all of them."""
