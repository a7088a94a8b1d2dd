"""from MODEL to files on disk."""
