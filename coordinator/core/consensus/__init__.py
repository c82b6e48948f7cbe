"""What every node does: follows the log, elects, answers proposals, synchronises. Pure."""
