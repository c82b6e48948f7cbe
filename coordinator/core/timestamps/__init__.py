"""Stability and restart timestamps as a node sees them. Pure."""
