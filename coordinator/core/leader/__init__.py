"""What the master does on top: forms groups, commits, keeps members, leads builds. Pure."""
