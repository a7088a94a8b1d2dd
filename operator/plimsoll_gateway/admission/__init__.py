"""Admission of requests: limits, queues, quotas."""
