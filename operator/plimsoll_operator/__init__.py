"""The control plane: reconciles ModelDeployments and RuntimePools into pods, and writes their status."""
