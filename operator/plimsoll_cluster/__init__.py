"""What operator and gateway share: how a process keeps a true copy of what it needs of the cluster."""
