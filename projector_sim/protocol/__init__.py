"""What a key-value store and those who stream from it have to agree on."""
