"""The job that archives topics in Delta Lake."""
