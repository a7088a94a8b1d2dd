"""The device that computes: what its errors mean, and what there is to say of it before anything is computed."""
