"""The options of all processes that speak to Kafka."""

from __future__ import annotations

import argparse
from pathlib import Path

from coordinator.kafka.address import at, read_settings
from coordinator.kafka.errors import KafkaRefusal
from coordinator.runtime.arguments import cluster


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which cluster a process belongs to, and where its Kafka is."""
    parser.add_argument(
        "--cluster",
        type=cluster,
        required=True,
        help="name of the cluster, the prefix of its topics",
    )
    add_kafka(parser)


def add_kafka(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where Kafka is, and how to log in there."""
    parser.add_argument("--bootstrap-servers", required=True, help="Kafka: HOST:PORT[,HOST:PORT…]")
    parser.add_argument(
        "--kafka-conf",
        type=settings_file,
        metavar="FILE",
        help="how to log in at Kafka: security.protocol, sasl.… and ssl.…, a NAME=VALUE a line",
    )


def settings_file(text: str) -> Path:
    """Return the path of a file with settings that can be used."""
    file = Path(text).absolute()
    try:
        read_settings(file)
    except KafkaRefusal as error:
        raise argparse.ArgumentTypeError(f"{error.message} [{error.code}]") from None
    return file


def kafka_of(arguments: argparse.Namespace) -> str:
    """Return where Kafka is, with how to log in there."""
    return at(arguments.bootstrap_servers, arguments.kafka_conf)
