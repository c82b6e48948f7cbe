"""Backups: one file with the state, the history and the settings of a cluster."""
