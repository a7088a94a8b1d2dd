"""Models as data: one decoder, described by a spec."""
