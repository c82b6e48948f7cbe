"""The StateContext, and what a command changes in it. Pure."""
