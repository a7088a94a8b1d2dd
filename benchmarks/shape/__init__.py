"""The size of the code, and the part of it that runs in a step and in a request."""
