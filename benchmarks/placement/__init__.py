"""The loading time that placement costs, compared with other rules and with a lower bound for all rules."""
