"""KEDA's external scaler over gRPC: server, trigger and messages."""
