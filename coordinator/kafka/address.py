"""Where Kafka is, and how a client logs in there: one file of settings for every kind of client.

The file has lines `name=value`, as Kafka's own tools have them, and lines that begin with `#`. The
names are those of librdkafka:

    security.protocol=SASL_SSL          PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
    sasl.mechanism=SCRAM-SHA-512        PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512
    sasl.username=coordinator
    sasl.password=…
    ssl.ca.location=ca.pem              who signs the brokers' certificates; else the system's
    ssl.certificate.location=me.pem     a certificate of this client, with its chain
    ssl.key.location=me.key             and its key
    ssl.key.password=…                  if that is encrypted
    ssl.endpoint.identification.algorithm=none    do not check the brokers' names

Paths are relative to the file. `KafkaAddress` is what is passed around as bootstrap servers: a text
for whom only the address matters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinator.kafka.errors import KafkaRefusal

PROTOCOL, MECHANISM = "security.protocol", "sasl.mechanism"
USERNAME, PASSWORD = "sasl.username", "sasl.password"
CA, CERTIFICATE, KEY = "ssl.ca.location", "ssl.certificate.location", "ssl.key.location"
KEY_PASSWORD = "ssl.key.password"
IDENTIFICATION = "ssl.endpoint.identification.algorithm"

ALIASES = {"sasl.mechanisms": MECHANISM}
CHOICES: Mapping[str, tuple[str, ...]] = {
    PROTOCOL: ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    MECHANISM: ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
    IDENTIFICATION: ("https", "none"),
}
PATHS = (CA, CERTIFICATE, KEY)
PKCS8 = re.compile(rb"-----BEGIN (ENCRYPTED )?PRIVATE KEY-----")
NAMES = (PROTOCOL, MECHANISM, USERNAME, PASSWORD, *PATHS, KEY_PASSWORD, IDENTIFICATION)


class KafkaAddress(str):
    """`HOST:PORT[,HOST:PORT…]`, with `settings` to log in; `file` is where they were read."""

    __slots__ = ("file", "settings")

    settings: Mapping[str, str]
    file: Path | None

    def __new__(
        cls, servers: str, settings: Mapping[str, str], file: Path | None = None
    ) -> KafkaAddress:
        """Raises KafkaRefusal `kafka_conf_invalid`."""
        made = super().__new__(cls, servers)
        made.settings, made.file = checked(settings), file
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return str(self), self.settings, self.file


def at(servers: str, file: Path | None) -> str:
    """Return an address with the settings of a file, or without. Raises KafkaRefusal."""
    return servers if file is None else KafkaAddress(servers, read_settings(file), file)


def read_settings(file: Path) -> dict[str, str]:
    """Return the settings of a file. Raises KafkaRefusal `kafka_conf_invalid`."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise _invalid(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _invalid(f"{file}: {error}") from error
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        name, equals, value = line.partition("=")
        name = ALIASES.get(name.strip(), name.strip())
        if not equals:
            raise _invalid(f"{file}, line {number}: NAME=VALUE belongs there")
        found[name] = value.strip()
    for name in PATHS:
        if name in found:
            found[name] = str(file.parent.absolute() / found[name])
    try:
        return checked(found)
    except KafkaRefusal as error:
        raise _invalid(f"{file}: {error.message}") from None


def checked(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings that go together. Raises KafkaRefusal `kafka_conf_invalid`."""
    found = {ALIASES.get(name, name): str(value) for name, value in settings.items()}
    for name, value in found.items():
        if name not in NAMES:
            raise _invalid(f"there is no setting {name!r}; there are {', '.join(NAMES)}")
        if value not in CHOICES.get(name, (value,)):
            raise _invalid(f"{name} is one of {', '.join(CHOICES[name])}, not {value!r}")
        if name in PATHS and not Path(value).is_file():
            raise _invalid(f"{name}: there is no file {value}")
    protocol = found.setdefault(PROTOCOL, "PLAINTEXT")
    needed = (MECHANISM, USERNAME, PASSWORD) if protocol.startswith("SASL") else ()
    if missing := [name for name in needed if not found.get(name)]:
        raise _invalid(f"{protocol} needs {' and '.join(missing)}")
    if KEY in found and not PKCS8.search(_content(KEY, found[KEY])):
        how = "openssl pkcs8 -topk8 -nocrypt -in OLD -out NEW"
        raise _invalid(f"{KEY}: {found[KEY]} is no PKCS #8 key in PEM, which Java needs: {how}")
    if (CERTIFICATE in found) != (KEY in found):
        raise _invalid(f"{CERTIFICATE} and {KEY} go together")
    unused = [name for name in found if name.startswith("sasl.") and not needed]
    unused += [name for name in found if name.startswith("ssl.") and not protocol.endswith("SSL")]
    if unused:
        raise _invalid(f"{', '.join(unused)} mean nothing with {PROTOCOL}={protocol}")
    if protocol.endswith("SSL"):
        _ssl_context(found)  # Each client would say in its own way, and late, what is wrong.
    return found


def _content(name: str, file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise _invalid(f"{name}: {file} cannot be read: {error.strerror}") from error


def _invalid(message: str) -> KafkaRefusal:
    return KafkaRefusal("kafka_conf_invalid", message)


def settings_of(servers: str) -> Mapping[str, str]:
    """Return the settings of an address; a plain text has none."""
    return servers.settings if isinstance(servers, KafkaAddress) else {}


# -- for each kind of client ---------------------------------------------------------------------


def client_settings(servers: str) -> dict[str, Any]:
    """Return the address and its settings as librdkafka takes them."""
    return {"bootstrap.servers": str(servers), **settings_of(servers)}


def aiokafka_settings(servers: str) -> dict[str, Any]:
    """Return the settings of an address as aiokafka takes them, by keyword."""
    settings = settings_of(servers)
    if not settings:
        return {}
    found: dict[str, Any] = {"security_protocol": settings[PROTOCOL]}
    if MECHANISM in settings:
        found["sasl_mechanism"] = settings[MECHANISM]
        found["sasl_plain_username"] = settings[USERNAME]
        found["sasl_plain_password"] = settings[PASSWORD]
    if settings[PROTOCOL].endswith("SSL"):
        found["ssl_context"] = _ssl_context(settings)
    return found


def _ssl_context(settings: Mapping[str, str]) -> Any:
    """Return how TLS is spoken. Raises KafkaRefusal: a file is not what it should be."""
    import ssl

    try:
        context = ssl.create_default_context(cafile=settings.get(CA))
    except (OSError, ValueError) as error:
        raise _invalid(f"{CA}: {settings.get(CA)} cannot be used: {error}") from error
    context.check_hostname = settings.get(IDENTIFICATION) != "none"
    if CERTIFICATE in settings:
        try:
            # Without any password OpenSSL would ask for one at the terminal.
            context.load_cert_chain(
                settings[CERTIFICATE], settings[KEY], settings.get(KEY_PASSWORD, "")
            )
        except (OSError, ValueError) as error:
            which = f"{settings[CERTIFICATE]} and {settings[KEY]}"
            raise _invalid(f"{CERTIFICATE}, {KEY}: {which} cannot be used: {error}") from error
    return context


LOGIN_MODULES = {"PLAIN": "plain.PlainLoginModule"}
SCRAM = "scram.ScramLoginModule"


def java_settings(servers: str) -> dict[str, str]:
    """Return the settings of an address as Kafka's Java client takes them.

    Certificates are in there as text: other machines than this one may use them.
    """
    settings = settings_of(servers)
    if not settings:
        return {}
    found = {PROTOCOL: settings[PROTOCOL]}
    if MECHANISM in settings:
        module = LOGIN_MODULES.get(settings[MECHANISM], SCRAM)
        user, password = (_quoted(settings[name]) for name in (USERNAME, PASSWORD))
        found[MECHANISM] = settings[MECHANISM]
        found["sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{module} required "
            f"username={user} password={password};"
        )
    if CA in settings:
        found["ssl.truststore.type"] = "PEM"
        found["ssl.truststore.certificates"] = Path(settings[CA]).read_text()
    if CERTIFICATE in settings:
        found["ssl.keystore.type"] = "PEM"
        found["ssl.keystore.certificate.chain"] = Path(settings[CERTIFICATE]).read_text()
        found["ssl.keystore.key"] = Path(settings[KEY]).read_text()
        if KEY_PASSWORD in settings:
            found[KEY_PASSWORD] = settings[KEY_PASSWORD]
    if settings.get(IDENTIFICATION) == "none":
        found[IDENTIFICATION] = ""
    return found


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
