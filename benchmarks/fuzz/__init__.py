"""Thousands of unusual requests to every endpoint of real servers, looking for errors, hangs and leaks."""
