"""What many answers to one long prompt cost the server and its engine."""
