"""From MODEL to files on disk: hub, demo, downloads."""
