"""What pods were made of, kept as ControllerRevisions: to find it again, and to make such a pod once more."""
