"""Many models on one device: who is in its memory, who sleeps, and why."""
