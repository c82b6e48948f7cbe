"""Rows that belong together: numbers for groups, on whole arrays. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coordinator.core.model.vectors import Numbers

FEW = 16
"""So many connections send SYNCs at a time at most, usually."""
SPARSE = 4
"""With more numbers than so many a row, sorting the rows is quicker than looking at each number."""


def firsts(*keys: NDArray[np.int64] | Numbers) -> NDArray[np.bool_]:
    """Tell which rows, sorted by these keys, are the first of theirs."""
    first = np.zeros(len(keys[0]), np.bool_)
    first[:1] = True
    for key in keys:
        first[1:] |= key[1:] != key[:-1]
    return first


def grouped(
    connections: NDArray[np.int64], vbuckets: NDArray[np.int64], size: int
) -> tuple[NDArray[np.int64], int]:
    """Return the number of each row's connection and vbucket together, and how many there are."""
    wide = _numbered(connections) * size + vbuckets
    if not len(wide):
        return wide, 0
    if wide.max() > SPARSE * len(wide):
        found, places = np.unique(wide, return_inverse=True)
        return places, len(found)
    used = np.zeros(int(wide.max()) + 1, np.bool_)
    used[wide] = True
    return (np.cumsum(used) - 1)[wide], int(used.sum())


def _numbered(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return small numbers for values: quickly if there are few of them, as there should be."""
    numbers = np.zeros(len(values), np.int64)
    left = np.arange(len(values))
    for number in range(FEW):
        if not len(left):
            return numbers
        same = values[left] == values[left[0]]
        numbers[left[same]] = number
        left = left[~same]
    numbers[left] = np.unique(values[left], return_inverse=True)[1] + FEW
    return numbers
