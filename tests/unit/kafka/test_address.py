"""One file says how to log in at Kafka, to every kind of client."""

from __future__ import annotations

import copy
import pickle
import ssl
from pathlib import Path

import pytest

from coordinator.embedded.children import kafka_options
from coordinator.kafka.address import (
    KafkaAddress,
    aiokafka_settings,
    at,
    client_settings,
    java_settings,
    read_settings,
)
from coordinator.kafka.errors import KafkaRefusal
from tests.support.certificates import Certificates, make_certificates

SASL = (
    "security.protocol=SASL_PLAINTEXT\nsasl.mechanisms=PLAIN\nsasl.username=u\nsasl.password=p=q\n"
)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def written(folder: Path, text: str) -> Path:
    file = folder / "kafka.conf"
    file.write_text(text)
    return file


def test_every_client_is_told_the_same(certificates: Certificates) -> None:
    text = "# who we are\n\nsecurity.protocol = SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\n"
    text += 'sasl.username=u\nsasl.password=a "b" \\c\nssl.ca.location=authority.pem\n'
    text += "ssl.certificate.location=client.pem\nssl.key.location=client_key.pem\n"
    text += "ssl.endpoint.identification.algorithm=none\n"
    address = at("h:1,h:2", written(certificates.client.parent, text))
    assert address == "h:1,h:2"
    told = client_settings(address)
    assert told["bootstrap.servers"] == "h:1,h:2"
    assert told["ssl.ca.location"] == str(certificates.authority)
    assert told["sasl.password"] == 'a "b" \\c'
    python = aiokafka_settings(address)
    assert (python["security_protocol"], python["sasl_mechanism"]) == ("SASL_SSL", "SCRAM-SHA-256")
    assert isinstance(python["ssl_context"], ssl.SSLContext)
    assert not python["ssl_context"].check_hostname
    java = java_settings(address)
    assert java["sasl.jaas.config"] == (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="u" password="a \\"b\\" \\\\c";'
    )
    assert java["ssl.truststore.certificates"] == certificates.authority.read_text()
    assert java["ssl.keystore.key"] == certificates.client_key.read_text()
    assert java["ssl.endpoint.identification.algorithm"] == ""


def test_names_of_brokers_are_checked_unless_that_is_left_out(certificates: Certificates) -> None:
    text = "security.protocol=SSL\nssl.ca.location=authority.pem\n"
    address = at("h:1", written(certificates.client.parent, text))
    assert aiokafka_settings(address)["ssl_context"].check_hostname
    assert "ssl.endpoint.identification.algorithm" not in java_settings(address)


def test_a_plain_address_says_nothing_more() -> None:
    assert client_settings("h:1") == {"bootstrap.servers": "h:1"}
    assert aiokafka_settings("h:1") == {}
    assert java_settings("h:1") == {}
    assert kafka_options("h:1") == ("--bootstrap-servers", "h:1")


def test_an_address_is_a_text_that_keeps_its_settings_and_goes_to_children(tmp_path: Path) -> None:
    file = written(tmp_path, SASL)
    address = at("h:1", file)
    for again in (copy.deepcopy(address), pickle.loads(pickle.dumps(address))):
        assert again == "h:1"
        assert client_settings(again) == client_settings(address)
    assert kafka_options(address) == ("--bootstrap-servers", "h:1", "--kafka-conf", str(file))
    assert type(client_settings(address)["bootstrap.servers"]) is str
    assert java_settings(address)["sasl.jaas.config"].split()[0].endswith("plain.PlainLoginModule")
    assert "password" not in repr(address)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bootstrap.servers=h:1", "no setting 'bootstrap.servers'"),
        ("security.protocol", "line 1: NAME=VALUE"),
        ("security.protocol=TLS", "security.protocol is one of PLAINTEXT, SSL"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI", "sasl.mechanism is one of PLAIN"),
        ("security.protocol=SASL_SSL", "needs sasl.mechanism and sasl.username and sasl.password"),
        ("security.protocol=SSL\nssl.ca.location=nowhere.pem", "there is no file"),
        (SASL + "ssl.endpoint.identification.algorithm=none", "mean nothing with"),
        ("security.protocol=SSL\nsasl.username=u", "mean nothing with security.protocol=SSL"),
        ("security.protocol=SSL\nssl.key.location=kafka.conf", "is no PKCS #8 key"),
    ],
)
def test_what_cannot_be_is_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(KafkaRefusal) as refused:
        read_settings(written(tmp_path, text))
    assert refused.value.code == "kafka_conf_invalid"
    assert said in refused.value.message


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name in ("nowhere", "binary"):
        with pytest.raises(KafkaRefusal) as refused:
            read_settings(tmp_path / name)
        assert refused.value.code == "kafka_conf_invalid"


def test_a_certificate_needs_its_key(certificates: Certificates) -> None:
    with pytest.raises(KafkaRefusal, match="go together"):
        KafkaAddress(
            "h:1",
            {"security.protocol": "SSL", "ssl.certificate.location": str(certificates.client)},
        )


def test_a_key_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Such as one of another user. Of this process's own memory nobody can read the beginning."""
    key = Path("/proc/self/mem")
    text = f"security.protocol=SSL\nssl.certificate.location={key}\nssl.key.location={key}\n"
    with pytest.raises(KafkaRefusal) as refused:
        read_settings(written(tmp_path, text))
    assert refused.value.code == "kafka_conf_invalid"
    assert f"ssl.key.location: {key}" in refused.value.message


@pytest.mark.parametrize(
    "name", ["ssl.ca.location", "ssl.certificate.location", "ssl.key.location"]
)
def test_a_file_that_is_no_certificate_is_refused_before_any_client_is_made(
    certificates: Certificates, tmp_path: Path, name: str
) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_bytes(b"-----BEGIN PRIVATE KEY-----\njunk\n")
    files = {
        "ssl.ca.location": certificates.authority,
        "ssl.certificate.location": certificates.client,
        "ssl.key.location": certificates.client.parent / "client_key.pem",
    }
    lines = [f"{one}={junk if one == name else file}" for one, file in files.items()]
    text = "\n".join(["security.protocol=SSL", *lines])
    with pytest.raises(KafkaRefusal) as refused:
        read_settings(written(tmp_path, text))
    assert refused.value.code == "kafka_conf_invalid"
    assert str(junk) in refused.value.message
