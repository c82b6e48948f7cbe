"""A Docker engine, and a compose project on it, by their command lines.

The environment says what a machine needs: `DOCKER` and `COMPOSE` name the commands, Docker's own
variables the engine, `BASE_IMAGE` the base of the image, and `DOCKER_BUILD_ARGS` whatever `docker
build` has to be told, such as secrets. `DOCKER_NETWORK=host` chooses the network of the host; where
the engine can make no other it is used as well.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker"
ASK_S = 60.0
BUILD_S = 3_600.0
UP_S = 600.0
DOCKER = shlex.split(os.environ.get("DOCKER", "docker"))
LABEL, SERVICE = "com.docker.compose.project", "com.docker.compose.service"


class CallError(AssertionError):
    """A command that failed: what it was, and what it said."""


def call(command: Sequence[str], *, timeout_s: float = ASK_S, input_text: str | None = None) -> str:
    """Return what a command printed. Raises CallError; a command that hangs is killed."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            input=input_text,
            stdin=subprocess.DEVNULL if input_text is None else None,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CallError(f"{shlex.join(command)}: {error}") from error
    if done.returncode:
        said = (done.stdout + done.stderr)[-4_000:]
        raise CallError(f"{shlex.join(command)} ended with {done.returncode}: {said}")
    return done.stdout


def docker(*arguments: str, timeout_s: float = ASK_S) -> str:
    """Return what `docker` printed."""
    return call([*DOCKER, *arguments], timeout_s=timeout_s)


@cache
def compose_command() -> tuple[str, ...]:
    """Return the command that is Compose here; empty if there is none."""
    named = os.environ.get("COMPOSE")
    for one in [shlex.split(named)] if named else [[*DOCKER, "compose"], ["docker-compose"]]:
        try:
            call([*one, "version"])
        except CallError:
            continue
        return tuple(one)
    return ()


@cache
def missing() -> str:
    """Return what is missing for these tests; empty if nothing is."""
    try:
        docker("version", "--format", "{{.Server.Version}}")
    except CallError as error:
        return f"no Docker engine answers ({str(error).splitlines()[0][:200]})"
    return "" if compose_command() else "there is neither `docker compose` nor `docker-compose`"


def has_default_bridge() -> bool:
    """Tell whether a build gets a network of its own, without being told how."""
    return "bridge" in docker("network", "ls", "--format", "{{.Name}}").split()


def networks_of_host() -> bool:
    """Tell whether the project uses the network of the host: by wish, or for want of others."""
    if os.environ.get("DOCKER_NETWORK") == "host":
        return True
    name = f"index-coordinator-probe-{os.getpid()}"
    try:
        docker("network", "create", name)
    except CallError:
        return True
    docker("network", "rm", name)
    return False


def disk_use() -> str:
    """Return the engine's own account of its disk."""
    return docker("system", "df", timeout_s=BUILD_S)


def build(tag: str) -> None:
    """Build the image from this checkout."""
    base = os.environ.get("BASE_IMAGE")
    command = [*DOCKER, "build", "--tag", tag, "--file", str(FOLDER / "Dockerfile")]
    command += ["--build-arg", f"BASE_IMAGE={base}"] if base else []
    command += [] if has_default_bridge() else ["--network=host"]
    command += shlex.split(os.environ.get("DOCKER_BUILD_ARGS", ""))
    os.environ.setdefault("DOCKER_BUILDKIT", "1")
    call([*command, str(ROOT)], timeout_s=BUILD_S)


class Project:
    """The compose project of this checkout, under a name of its own."""

    def __init__(self, name: str, image: str) -> None:
        self.name = name
        os.environ["INDEX_COORDINATOR_IMAGE"] = image
        network = "compose.host.yaml" if networks_of_host() else "compose.override.yaml"
        self._compose = [*compose_command(), "--project-name", name]
        for file in ("compose.yaml", network):
            self._compose += ["--file", str(FOLDER / file)]

    def compose(self, *arguments: str, timeout_s: float = ASK_S) -> str:
        """Return what Compose printed."""
        return call([*self._compose, *arguments], timeout_s=timeout_s)

    def up(self) -> None:
        """Start everything; the shell comes last, when the others are healthy."""
        self.compose("up", "--detach", "--no-build", timeout_s=UP_S)

    def down(self) -> None:
        """Stop everything, and remove containers, networks and volumes."""
        self.compose("down", "--volumes", "--timeout", "5", timeout_s=UP_S)

    def left(self) -> list[str]:
        """Return the containers and volumes that still bear the name of the project."""
        chosen = ["--filter", f"label={LABEL}={self.name}"]
        found = docker("ps", "--all", "--quiet", *chosen) + docker("volume", "ls", "-q", *chosen)
        return found.split()

    @cached_property
    def services(self) -> list[str]:
        return self.compose("config", "--services").split()

    def container(self, service: str) -> str:
        """Return the id of a service's container."""
        chosen = [f"label={LABEL}={self.name}", f"label={SERVICE}={service}"]
        filters = [word for one in chosen for word in ("--filter", one)]
        return docker("ps", "--all", "--quiet", *filters).strip()

    def state(self, service: str) -> dict[str, Any]:
        """Return the state of a service's container, with `RestartCount`."""
        found = json.loads(docker("inspect", self.container(service)))[0]
        return {**found["State"], "RestartCount": found["RestartCount"]}

    def healthy(self, service: str) -> bool:
        """Tell whether a container runs, and answers if it has something to ask."""
        state = self.state(service)
        return bool(
            state["Running"] and state.get("Health", {}).get("Status", "healthy") == "healthy"
        )

    def run(self, *command: str, service: str = "shell", timeout_s: float = 120.0) -> str:
        """Return what a command printed in a container: a person's shell, if not another."""
        found = [*DOCKER, "exec", self.container(service), *command]
        return call(found, timeout_s=timeout_s)

    def indexctl(self, *arguments: str, timeout_s: float = 120.0) -> Any:
        """Return the JSON that `indexctl` printed."""
        return json.loads(self.run("indexctl", "--json", *arguments, timeout_s=timeout_s))

    def feed(self, text: str, *command: str) -> str:
        """Return what a command in the shell printed, given this text."""
        found = [*DOCKER, "exec", "--interactive", self.container("shell"), *command]
        return call(found, timeout_s=120.0, input_text=text)

    def kill(self, service: str) -> None:
        """Kill a container: the engine does not start it again by itself."""
        docker("kill", self.container(service))

    def start(self, service: str) -> None:
        docker("start", self.container(service))

    def crash(self, service: str) -> None:
        """Kill all processes of a container but its first, from within: it is started again."""
        try:
            self.run("bash", "-c", "kill -9 -1", service=service)
        except CallError as error:
            # The container ends beneath the command, which then says so.
            assert "ended with" in str(error), error  # noqa: PT017

    def logs(self) -> str:
        """Return the last lines of all containers."""
        return self.compose("logs", "--no-color", "--tail", "25")


@contextmanager
def running(name: str, tag: str) -> Iterator[Project]:
    """Build the image and run the project, and leave nothing of either; disk use is printed."""
    assert not missing()
    before = disk_use()
    build(tag)
    project = Project(name, tag)
    assert project.left() == [], f"the project {name} is there already"
    try:
        project.up()
        yield project
        print(f"\nDocker's disk use while the cluster runs:\n{disk_use()}")
    finally:
        try:
            project.down()
            assert project.left() == []
        finally:
            docker("image", "rm", "--force", tag, timeout_s=UP_S)
        print(f"Docker's disk use before:\n{before}\nand after:\n{disk_use()}")
