"""The savings of snapshots of recurrent states, and their cost without shared prefixes."""
