"""The demand for each model, and the performance of its replicas, for GET /demand."""
