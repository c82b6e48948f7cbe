"""The side of the documents: a simulated key-value store, and what streams from it."""
