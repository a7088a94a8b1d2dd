"""Helpers of the scenarios: the cluster's objects, the models' HTTP interface, and load."""
