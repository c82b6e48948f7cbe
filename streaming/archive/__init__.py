"""The job that archives `history` as Parquet."""
