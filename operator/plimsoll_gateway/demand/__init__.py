"""What requests ask of each model, and how its replicas answer, for GET /demand."""
