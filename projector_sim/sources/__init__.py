"""Where documents come from: the key-value store, and Kafka topics."""
