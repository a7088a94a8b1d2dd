"""What programs of clients share; they run in the environment of `make clients`."""
