"""Simulations of planner and scaler without a cluster, and the commands `simulate` and `explain`."""
