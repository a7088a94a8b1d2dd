"""Support for checks on a device: the device of parity tests, and runs that continue after an interruption."""
