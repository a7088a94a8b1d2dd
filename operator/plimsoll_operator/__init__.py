"""The control plane: ModelDeployment resources to pods, and back to status."""
