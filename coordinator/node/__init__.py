"""The process of a node: it carries out what the core says."""
