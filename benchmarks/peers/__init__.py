"""What people would use instead: how it is installed, where it is found, how models are converted for it."""
