"""A broker to which clients come over TLS, and log in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from coordinator.embedded.broker import Broker
from tests.support.certificates import Certificates
from tests.support.ports import reserve_port

HOST = "127.0.0.1"
USER, PASSWORD = "coordinator", 'a "secret" with \\ and = in it'
LOGIN = "org.apache.kafka.common.security"


class SecureBroker:
    """A broker with two addresses: one for this test's own look at it, one that is protected."""

    def __init__(self, folder: Path, certificates: Certificates) -> None:
        port, controller, self.port = reserve_port(), reserve_port(), reserve_port()
        self.broker = Broker(
            folder,
            port=port,
            controller_port=controller,
            settings={
                "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller},"
                f"SECURE://{HOST}:{self.port}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
                "SECURE:SASL_SSL",
                "inter.broker.listener.name": "PLAINTEXT",
                "sasl.enabled.mechanisms": "SCRAM-SHA-512",
                "listener.name.secure.scram-sha-512.sasl.jaas.config": f"{LOGIN}.scram."
                "ScramLoginModule required;",
                "listener.name.secure.ssl.keystore.type": "PEM",
                "listener.name.secure.ssl.keystore.location": str(certificates.broker),
                "listener.name.secure.ssl.truststore.type": "PEM",
                "listener.name.secure.ssl.truststore.location": str(certificates.authority),
                "listener.name.secure.ssl.client.auth": "required",
            },
        )

    @property
    def servers(self) -> str:
        return f"{HOST}:{self.port}"

    def __enter__(self) -> SecureBroker:
        self.broker.__enter__()
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers, "log_level": 2})
        how = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4_096)
        made = UserScramCredentialUpsertion(USER, how, PASSWORD.encode())
        for done in admin.alter_user_scram_credentials([made]).values():
            done.result(30)
        return self

    def __exit__(self, *told: object) -> None:
        self.broker.__exit__(*told)


def settings_for(certificates: Certificates) -> Mapping[str, str]:
    """Return what a client needs to log in."""
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "ssl.ca.location": certificates.authority.name,
        "ssl.certificate.location": certificates.client.name,
        "ssl.key.location": certificates.client_key.name,
    }
