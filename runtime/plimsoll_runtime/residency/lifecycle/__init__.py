"""Moves models between sleep levels, as the plan says."""
