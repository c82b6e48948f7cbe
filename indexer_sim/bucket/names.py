"""The names of buckets as names of folders. Pure."""

from __future__ import annotations

PLAIN_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-#.")


def folder_name(bucket: str) -> str:
    """Return the name of a bucket's folder: no two buckets share one, on any file system.

    Capitals become small letters, and a mask after `~` says where they were; characters that
    some file system dislikes become `%` and two hexadecimal digits a byte.
    """
    small: list[str] = []
    mask = 0
    for place, character in enumerate(bucket):
        if character.isascii() and character.isupper():
            mask |= 1 << place
            character = character.lower()
        if character in PLAIN_CHARACTERS and not (character == "." and place == 0):
            small.append(character)
        else:
            small.extend(f"%{byte:02x}" for byte in character.encode())
    return "".join(small) + (f"~{mask:x}" if mask else "")


def bucket_name(folder: str) -> str:
    """Return the bucket whose folder this is: the inverse of `folder_name`."""
    text, _, mask = folder.partition("~")
    raw = bytearray()
    place = 0
    while place < len(text):
        if text[place] == "%":
            raw.append(int(text[place + 1 : place + 3], 16))
            place += 3
        else:
            raw.append(ord(text[place]))
            place += 1
    capitals = int(mask or "0", 16)
    return "".join(
        character.upper() if capitals >> place & 1 else character
        for place, character in enumerate(raw.decode())
    )
