"""What the scenarios stand on: the cluster's objects, its models' HTTP interface, and load."""
