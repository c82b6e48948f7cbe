"""What indexes, buckets, topics, subscribers and settings may be called. Pure."""

from __future__ import annotations

import re

NAME_LENGTH_MAX = 128
NAME = re.compile(r"[A-Za-z_#][A-Za-z0-9_#.\-]*")
NAME_RULE = f"a letter, _ or #, then letters, digits, _ # . -, at most {NAME_LENGTH_MAX}"
KAFKA_TOPIC = re.compile(r"(?!\.\.?$)(?!__)[A-Za-z0-9._\-]{1,249}")
"""What Kafka takes as the name of a topic, but for what its own begin with."""

SETTING_NAME = re.compile(r"[A-Za-z0-9_.\-/:]{1,256}")


def is_name(text: str) -> bool:
    """Tell whether an index, a bucket, a topic or a subscriber may be called so."""
    return len(text) <= NAME_LENGTH_MAX and NAME.fullmatch(text) is not None
