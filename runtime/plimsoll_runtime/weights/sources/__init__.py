"""Model sources: find or download the files of a MODEL argument (hub, demo, folder)."""
