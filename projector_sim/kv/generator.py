"""Documents to fill a bucket with: people, in a few cities, with a few fields to index.

Deterministic: a document depends on the seed, its number and its version alone, and so do the
changes on the seed alone; the same seed gives the same bytes on every machine. Fields that are
indexed have few values (`city`, `country`), many (`email`), a skewed number (`age`), an exact one
(`price`), several at once (`tags`), or are missing now and then (`nickname`).
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from hashlib import blake2b
from itertools import accumulate

from projector_sim.kv.layout import Change

SIZE_BYTES = 500
KEY_FORMAT = b"user::%09d"

CITIES = (
    *(("Amsterdam", "NL"), ("Athens", "GR"), ("Bangalore", "IN"), ("Berlin", "DE")),
    *(("Bogotá", "CO"), ("Boston", "US"), ("Cairo", "EG"), ("Chennai", "IN"), ("Chicago", "US")),
    *(("Delhi", "IN"), ("Dublin", "IE"), ("Hanoi", "VN"), ("Helsinki", "FI"), ("Istanbul", "TR")),
    *(("Kyoto", "JP"), ("Lagos", "NG"), ("Lima", "PE"), ("Lisbon", "PT"), ("London", "GB")),
    *(("Lyon", "FR"), ("Madrid", "ES"), ("Manchester", "GB"), ("Melbourne", "AU")),
    *(("Mumbai", "IN"), ("München", "DE"), ("Nairobi", "KE"), ("New York", "US"), ("Oslo", "NO")),
    *(("Paris", "FR"), ("Prague", "CZ"), ("Rome", "IT"), ("San Francisco", "US")),
    *(("São Paulo", "BR"), ("Seoul", "KR"), ("Stockholm", "SE"), ("Sydney", "AU")),
    *(("Tokyo", "JP"), ("Toronto", "CA"), ("Vienna", "AT"), ("Zürich", "CH")),
)
FIRST_NAMES = ("Ada", "Alan", "Barbara", "Donald", "Edsger", "Frances", "Grace", "Jim", "Leslie")
LAST_NAMES = ("Codd", "Dijkstra", "Gray", "Hopper", "Knuth", "Lamport", "Liskov", "Lovelace")
TAGS = ("art", "books", "cars", "chess", "food", "games", "hiking", "jazz", "news", "sport")
WORDS = "the quick brown fox jumps over the lazy dog and runs away through the silent forest "

_CHANCE = struct.Struct("<HHHHHHIIQ")
_TEMPLATE = (
    '{"type":"user","number":%d,"version":%d,"name":"%s %s","email":"%s.%d@example.com",'
    '"city":"%s","country":"%s","age":%d,"price":%d.%02d,"active":%s,"tags":["%s","%s"],'
    '%s"joined_ms":%d,"text":"'
)


class Generator:
    """Documents numbered from 0, and changes of them."""

    def __init__(
        self, seed: int, documents: int, size_bytes: int = SIZE_BYTES, skew: float = 0.0
    ) -> None:
        """`skew` is the exponent of Zipf's law for the choice of documents to change; 0: none.

        A document has `size_bytes`, or as few as its fields take (less than 350).
        """
        self.seed = seed
        self.documents = documents
        self.size_bytes = size_bytes
        self.skew = skew
        self._seed_bytes = b"%d" % seed
        self._text = (WORDS * (1 + size_bytes // len(WORDS))).encode()

    def key(self, number: int) -> bytes:
        """Return the key of a document."""
        return KEY_FORMAT % number

    def document(self, number: int, version: int = 0) -> bytes:
        """Return a document, as JSON."""
        place = b"%d/%d" % (number, version)
        chance = blake2b(place, digest_size=_CHANCE.size, key=self._seed_bytes).digest()
        a, b, c, d, e, f, price, text, joined = _CHANCE.unpack(chance)
        city, country = CITIES[a % len(CITIES)]
        first = FIRST_NAMES[b % len(FIRST_NAMES)]
        head = _TEMPLATE % (
            *(number, version, first, LAST_NAMES[c % len(LAST_NAMES)]),
            *(first.lower(), number, city, country),
            # The sum of two chances: there are more in the middle than at the ends.
            *(18 + d % 40 + e % 33, price // 100 % 1000, price % 100),
            "false" if f % 4 == 0 else "true",
            *(TAGS[f % len(TAGS)], TAGS[(f + 1 + e % (len(TAGS) - 1)) % len(TAGS)]),
            f'"nickname":"{first[:2]}{text % 100}",' if text % 3 else "",
            1_500_000_000_000 + joined % 200_000_000_000,
        )
        raw = head.encode()
        return b'%b%b"}' % (raw, self._text[: max(0, self.size_bytes - len(raw) - 2)])

    def load(self, begin: int = 0) -> Iterator[Change]:
        """Yield the first version of each document from `begin` on, by number."""
        for number in range(begin, self.documents):
            yield Change(self.key(number), self.document(number))

    def changes(self, count: int, deletions: float = 0.0) -> Iterator[Change]:
        """Yield `count` changes of documents; `deletions` is the share of deletions."""
        # Not a seed that depends on the hash of a tuple: that differs from process to process.
        chance = random.Random(f"{self.seed}/{self.documents}/{self.skew}")
        numbers = self._chosen(chance)
        for version in range(1, count + 1):
            number = next(numbers)
            delete = deletions > 0 and chance.random() < deletions
            yield Change(self.key(number), None if delete else self.document(number, version))

    def _chosen(self, chance: random.Random) -> Iterator[int]:
        """Yield numbers of documents: the lower the more often, if there is a skew."""
        if self.skew == 0:
            while True:
                yield int(chance.random() * self.documents)
        numbers = range(self.documents)
        weights = list(accumulate((1 + number) ** -self.skew for number in numbers))
        while True:
            yield from chance.choices(numbers, cum_weights=weights, k=256)
