"""Which namespaces may use which served names: policy, rules, record, options."""
