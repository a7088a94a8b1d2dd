"""What tests of batches share."""
