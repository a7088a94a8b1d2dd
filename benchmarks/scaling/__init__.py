"""A day of bursty traffic through the operator's own scaler, beside fixed numbers of replicas and an HPA's rule."""
