"""Records of options that several layers read: how one model is served, and where responses and files are stored."""
