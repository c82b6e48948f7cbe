"""The application that computes timestamps: one Spark query."""
