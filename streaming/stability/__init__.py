"""Computes timestamps from SYNC, BEGIN and END, the control records of streams. Pure."""
