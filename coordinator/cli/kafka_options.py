"""Where Kafka is, as the command line says it."""

from __future__ import annotations

from pathlib import Path

from coordinator.cli.output import CommandError


def kafka_at(servers: str | None, conf: Path | None) -> str | None:
    """Return the address of Kafka, with how to log in there.

    Raises CommandError: `usage`, `kafka_conf_invalid`.
    """
    if conf is None:
        return servers
    if servers is None:
        raise CommandError("usage", "--kafka-conf goes with --bootstrap-servers")
    from coordinator.kafka.address import at
    from coordinator.kafka.errors import KafkaRefusal

    try:
        return at(servers, conf.absolute())
    except KafkaRefusal as error:
        raise CommandError(error.code, error.message) from None
