"""What only the master does: forms groups, commits, keeps members, leads builds. Pure."""
