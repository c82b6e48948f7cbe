"""Certificates of an authority that only a test knows."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import trustme
from cryptography.hazmat.primitives import serialization as s


class Certificates(NamedTuple):
    """Files in PEM: who signs; a broker's key and chain in one; a client's chain, and its key."""

    authority: Path
    broker: Path
    client: Path
    client_key: Path


def make_certificates(folder: Path) -> Certificates:
    """Write them to a folder. Kafka reads keys as PKCS #8 only."""
    authority = trustme.CA()
    made = Certificates(*(folder / f"{name}.pem" for name in Certificates._fields))
    made.authority.write_bytes(authority.cert_pem.bytes())
    broker, client = authority.issue_cert("127.0.0.1", "localhost"), authority.issue_cert("me@here")
    made.broker.write_bytes(_key(broker) + _chain(broker))
    made.client.write_bytes(_chain(client))
    made.client_key.write_bytes(_key(client))
    return made


def _chain(issued: trustme.LeafCert) -> bytes:
    return b"".join(blob.bytes() for blob in issued.cert_chain_pems)


def _key(issued: trustme.LeafCert) -> bytes:
    key = s.load_pem_private_key(issued.private_key_pem.bytes(), None)
    return key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
