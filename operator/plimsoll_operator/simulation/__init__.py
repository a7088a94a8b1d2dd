"""The planner and the scaler without a cluster, and the commands `simulate` and `explain`."""
