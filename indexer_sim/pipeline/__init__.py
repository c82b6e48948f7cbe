"""From Kafka to storage: reading mutations, applying them, telling how far it got."""
