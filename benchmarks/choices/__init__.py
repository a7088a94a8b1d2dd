"""The cost of many choices for one long prompt, for the server and its engine."""
