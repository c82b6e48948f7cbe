"""Which Java is taken, and what is said if there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.runtime.errors import EmbeddedError
from coordinator.runtime.java import find_java, parse_major

OPENJDK_17 = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)'


@pytest.mark.parametrize(
    ("output", "major"),
    [
        (OPENJDK_17, 17),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "11.0.2" 2019-01-15', 11),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_the_major_version_is_read(output: str, major: int | None) -> None:
    assert parse_major(output) == major


def fake_java(home: Path, version: str, *, status: int = 0) -> Path:
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "21.0.1")
    other = fake_java(tmp_path / "other", "17.0.1")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)}
    assert (find_java(environment).path, find_java(environment).major) == (home, 21)


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_292"])
def test_an_old_java_home_does_not_hide_a_new_java_on_the_path(
    tmp_path: Path, version: str
) -> None:
    fake_java(tmp_path / "home", version)
    other = fake_java(tmp_path / "other", "17.0.1")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)}
    assert find_java(environment).path == other


def test_a_java_that_is_too_old_is_named(tmp_path: Path) -> None:
    old = fake_java(tmp_path, "11.0.2")
    with pytest.raises(EmbeddedError) as refusal:
        find_java({"PATH": str(old.parent)})
    assert refusal.value.code == "java_too_old"
    assert f"{old} is Java 11" in refusal.value.message
    assert "install Java 17" in refusal.value.message


def test_no_java_says_what_to_do(tmp_path: Path) -> None:
    broken = fake_java(tmp_path / "broken", "17.0.1", status=1)
    for environment in ({"PATH": ""}, {"JAVA_HOME": str(tmp_path)}, {"PATH": str(broken.parent)}):
        with pytest.raises(EmbeddedError) as refusal:
            find_java(environment)
        assert refusal.value.code == "java_missing"
        assert "JAVA_HOME" in refusal.value.message
