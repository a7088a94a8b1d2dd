"""Access to the cluster: API requests, stores of watched objects, writes with expectations, leader election."""
