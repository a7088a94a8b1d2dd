"""How fast do we serve, beside what people would use instead? Workloads W1 to W4, systems taking turns."""
