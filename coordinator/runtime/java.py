"""Finding a Java that runs the embedded broker: JAVA_HOME first, then PATH, version checked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coordinator.runtime.errors import EmbeddedError

MAJOR_MIN = 17
ASK_TIMEOUT_S = 30
WHAT_TO_DO = (
    f"install Java {MAJOR_MIN} or 21 (for example the package openjdk-{MAJOR_MIN}-jre-headless), "
    "or point JAVA_HOME at one"
)


@dataclass(frozen=True, slots=True)
class Java:
    """An executable and the major version that it reported."""

    path: Path
    major: int


def parse_major(output: str) -> int | None:
    """Return the major version in the output of `java -version`; None if there is none.

    `1.8.0_292` is 8 (the scheme before Java 9), `17.0.15`, `21` and `25-ea` are what they say.
    """
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match.group(1)) if match else None


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Return the first Java that is new enough.

    Raises EmbeddedError: `java_missing`, `java_too_old`.
    """
    too_old: list[Java] = []
    for path in _candidates(environment):
        major = _ask(path)
        if major is not None and major >= MAJOR_MIN:
            return Java(path, major)
        if major is not None:
            too_old.append(Java(path, major))
    if too_old:
        found = too_old[0]
        raise EmbeddedError(
            "java_too_old",
            f"{found.path} is Java {found.major}, and Kafka needs {MAJOR_MIN} or newer: "
            + WHAT_TO_DO,
        )
    raise EmbeddedError("java_missing", f"no Java found: {WHAT_TO_DO}")


def _candidates(environment: Mapping[str, str]) -> list[Path]:
    candidates = []
    if environment.get("JAVA_HOME"):
        candidates.append(Path(environment["JAVA_HOME"]) / "bin" / "java")
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        candidates.append(Path(on_path))
    return candidates


def _ask(path: Path) -> int | None:
    """Return the major version of the Java at `path`; None if it is none that runs."""
    try:
        done = subprocess.run(
            [path, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_major(done.stderr + done.stdout) if done.returncode == 0 else None
