"""A projector: streams of documents in, items for indexers out."""
