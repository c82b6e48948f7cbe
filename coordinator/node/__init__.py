"""The process of a node: it executes the effects of the core."""
