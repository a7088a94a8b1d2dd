"""Which namespace may have which served name: policy, rules, record, options."""
