"""The operator's process: options, kopf's setup, the work queue, and the reconcilers of ModelDeployments."""
