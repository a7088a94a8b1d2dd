"""The runners: each computes step plans on one kind of device, behind the protocol `Runner` of the engine."""
