"""How keys of indexes are ordered, packed and divided among slices. Pure."""
