"""ModelDeployments and RuntimePools as frozen records."""
