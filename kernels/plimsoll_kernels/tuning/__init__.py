"""Which way of launching a kernel is fastest here: measured once, kept on disk."""
