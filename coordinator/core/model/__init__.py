"""What everything speaks of: types, entities, records and commands. Nothing here decides."""
