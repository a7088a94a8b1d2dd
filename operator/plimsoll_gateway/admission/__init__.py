"""Which requests may go on: limits, queues, quotas."""
