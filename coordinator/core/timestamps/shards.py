"""Which application computes the timestamps of which bucket, where several share the work. Pure.

A shard is written `2/3`: the second of three. The buckets are divided by a hash of their names. One
application that has all buckets is the shard `1/1`, and its name is empty wherever it is written.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from zlib import crc32

PARTS_MAX = 64


class BucketShard(NamedTuple):
    """The part `number`, counted from 1, of all buckets in `parts` parts."""

    number: int
    parts: int

    def owns(self, bucket: str) -> bool:
        """Tell whether a bucket is in this part."""
        whole = self.parts == 1
        return whole or crc32(bucket.encode()) % self.parts == self.number - 1

    @property
    def name(self) -> str:
        """The name on the wire: empty if this is all."""
        return "" if self.parts == 1 else f"{self.number}/{self.parts}"


WHOLE = BucketShard(1, 1)

WRITTEN = re.compile(r"([1-9]\d?)/([1-9]\d?)", re.ASCII)


def shard_of(name: str) -> BucketShard:
    """Return the shard of a name. ValueError: it is none."""
    if not name:
        return WHOLE
    found = WRITTEN.fullmatch(name)
    number, parts = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= parts <= PARTS_MAX:
        raise ValueError(f"a shard is I/K, from 1/K to K/K, and K is at most {PARTS_MAX}")
    return BucketShard(number, parts)
