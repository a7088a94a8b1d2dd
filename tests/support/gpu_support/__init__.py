"""What checks on a device share: where parity runs, and tests that go on after a break."""
