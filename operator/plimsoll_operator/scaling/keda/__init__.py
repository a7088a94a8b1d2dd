"""KEDA's external scaler: what gateways say of a model, as KEDA asks for it, over gRPC."""
