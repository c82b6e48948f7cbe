"""The fold of SYNC, BEGIN and END to timestamps. Pure."""
