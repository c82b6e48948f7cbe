"""The language of DDL and of expressions: from text to commands and evaluators."""
