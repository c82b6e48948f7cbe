"""Sessions, queries and jars of Spark, for every application."""
