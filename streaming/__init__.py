"""Applications on Spark: they read the cluster's topics, and write to Kafka what follows."""
