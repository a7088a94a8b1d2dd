"""The cost of exchanges between the ranks of a group."""
