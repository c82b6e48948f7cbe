"""Class archives: where they are kept, which flags use or write one, and what is let go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coordinator.runtime import class_archive
from coordinator.runtime.class_archive import KEPT_MAX, archive_path, flags_with, keep


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDEXCTL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def jars(tmp_path: Path) -> tuple[Path, Path]:
    made = tmp_path / "java", tmp_path / "a.jar"
    for one in made:
        one.touch()
    return made


def place_of(jars: tuple[Path, Path]) -> Path:
    place = archive_path(jars[0], str(jars[1]))
    assert place is not None
    return place


def test_an_archive_is_of_one_java_and_its_jars(jars: tuple[Path, Path]) -> None:
    first = place_of(jars)
    assert place_of(jars) == first
    os.utime(jars[1], (1, 1))
    assert place_of(jars) != first
    assert place_of((jars[1], jars[0])) not in {first, place_of(jars)}


def test_where_none_can_be_kept_a_jvm_starts_without(
    tmp_path: Path, jars: tuple[Path, Path]
) -> None:
    assert archive_path(jars[0], str(tmp_path / "none.jar")) is None
    (tmp_path / "cache").touch()  # No folder can be made in it.
    assert archive_path(jars[0], str(jars[1])) is None
    assert not any("Archive" in flag for flag in flags_with(None))


def test_an_archive_is_used_once_it_is_there(tmp_path: Path, jars: tuple[Path, Path]) -> None:
    place, written = place_of(jars), tmp_path / "written.jsa"
    assert f"-XX:ArchiveClassesAtExit={written}" in class_archive.flags_to_write(written)
    assert not any("Archive" in flag for flag in flags_with(place))
    keep(written, place)  # The JVM was killed before it wrote one.
    assert not place.exists()
    written.write_bytes(b"classes")
    keep(written, place)
    assert place.read_bytes() == b"classes"
    assert not written.exists()
    assert f"-XX:SharedArchiveFile={place}" in flags_with(place)


def test_what_was_left_half_written_goes(
    tmp_path: Path, jars: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, written = place_of(jars), tmp_path / "written.jsa"
    killed = place.with_name(f".{place.name}.1.tmp")
    killed.touch()
    written.write_bytes(b"classes")

    def is_full(descriptor: int) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", is_full)
        keep(written, place)
    assert list(place.parent.iterdir()) == [killed]
    assert not written.exists()
    written.write_bytes(b"classes")
    keep(written, place)
    assert list(place.parent.iterdir()) == [place]


def test_an_archive_of_somebody_else_is_used(
    jars: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_of(jars)
    place.touch()

    def not_yours(path: Path) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(os, "utime", not_yours)
    assert f"-XX:SharedArchiveFile={place}" in flags_with(place)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert not any("Archive" in flag for flag in flags_with(place))


def test_the_first_archive_stays(tmp_path: Path, jars: tuple[Path, Path]) -> None:
    place, written = place_of(jars), tmp_path / "written.jsa"
    for content in (b"first", b"second"):
        written.write_bytes(content)
        keep(written, place)
    assert place.read_bytes() == b"first"
    assert [one.name for one in place.parent.iterdir()] == [place.name]


def test_what_was_not_used_for_the_longest_is_let_go(
    tmp_path: Path, jars: tuple[Path, Path]
) -> None:
    place, written = place_of(jars), tmp_path / "written.jsa"
    older = [place.with_name(f"{number}.jsa") for number in range(KEPT_MAX)]
    for at, one in enumerate(older):
        one.touch()
        os.utime(one, (at + 1, at + 1))
    flags_with(older[0])  # It is used again.
    written.write_bytes(b"classes")
    keep(written, place)
    assert set(place.parent.iterdir()) == {place, older[0], *older[2:]}
