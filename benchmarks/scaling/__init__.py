"""A day of bursty traffic with the operator's scaler, compared with fixed numbers of replicas and an HPA."""
