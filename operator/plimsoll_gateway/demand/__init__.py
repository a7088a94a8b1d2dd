"""What requests ask of each model, and how its replicas answer: counted here, told to whoever scales and rolls."""
