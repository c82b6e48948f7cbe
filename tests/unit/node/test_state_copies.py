"""Copies of past states on a disk: found again, spaced, and not believed where they are damaged."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator import codec
from coordinator.core.catalog.snapshots import chunks
from coordinator.core.catalog.state import EMPTY, StateContext
from coordinator.core.model.types import Cas
from coordinator.node import state_copies
from coordinator.node.state_copies import LENGTH, SPACING_MIN, StateCopies
from tests.support.views import a_state


def states(*cas: int) -> list[StateContext]:
    return [a_state(at, **{f"k{n}": str(at) for n in range(40)}) for at in cas]


def test_the_newest_copy_at_or_below_a_cas_is_found_also_after_a_restart(tmp_path: Path) -> None:
    first, second = states(10, 20)
    copies = StateCopies(tmp_path / "history")
    assert copies.at(100) == EMPTY
    copies.add(second)
    copies.add(first)
    for held in (copies, StateCopies(tmp_path / "history")):
        assert [held.at(cas) for cas in (9, 10, 19, 20, 99)] == [
            *(EMPTY, first, first, second, second)
        ]
        assert [held.newest(cas) for cas in (9, 19, 99)] == [0, 10, 20]


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "another", "less", "removed"])
def test_a_damaged_copy_is_deleted_and_the_one_before_it_takes_its_place(
    tmp_path: Path, damage: str
) -> None:
    first, second = states(10, 20)
    copies = StateCopies(tmp_path)
    for state in (first, second):
        copies.add(state)
    (path,) = tmp_path.glob(f"*{20:05d}.state")
    (other,) = tmp_path.glob(f"*{10:05d}.state")
    raw = bytearray(path.read_bytes())
    if damage == "removed":
        path.unlink()
    elif damage == "less":
        (chunk,) = chunks(0, second)
        encoded = codec.encode(replace(chunk, entries=chunk.entries[1:]))
        path.write_bytes(zlib.compress(LENGTH.pack(len(encoded)) + encoded))
    elif damage == "another":
        path.write_bytes(other.read_bytes())
    else:
        raw[len(raw) // 2] ^= 1
        path.write_bytes({"cut": raw[: len(raw) // 2], "flipped": raw, "emptied": b""}[damage])
    assert StateCopies(tmp_path).at(99) == first
    assert copies.at(99) == first
    assert not path.exists()
    assert copies.newest(99) == 10


def test_copies_are_as_far_apart_as_the_state_is_large(tmp_path: Path) -> None:
    copies = StateCopies(tmp_path)
    assert not copies.is_due(a_state(SPACING_MIN - 1, k="1"))
    assert copies.is_due(a_state(SPACING_MIN, k="1"))
    copies.add(a_state(SPACING_MIN, k="1"))
    assert not copies.is_due(a_state(SPACING_MIN, k="1"))
    assert not copies.is_due(a_state(2 * SPACING_MIN - 1, k="1"))
    assert copies.is_due(a_state(2 * SPACING_MIN, k="1"))
    copies.add(a_state(4 * SPACING_MIN, k="1"))
    assert copies.is_due(a_state(2 * SPACING_MIN, k="1")), "between two that are far apart"
    assert not copies.is_due(a_state(3 * SPACING_MIN + 1, k="1")), "the one above is near"
    large = a_state(3 * SPACING_MIN, **{f"k{n}": "1" for n in range(SPACING_MIN + 1)})
    assert not copies.is_due(large)


def test_where_the_disk_refuses_there_is_no_copy_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    copies = StateCopies(tmp_path / "file" / "history")
    copies.add(states(10)[0])
    assert copies.at(99) == EMPTY

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    copies = StateCopies(tmp_path / "history")
    monkeypatch.setattr(state_copies.os, "replace", full)
    copies.add(states(10)[0])
    assert copies.newest(99) == 0
    assert StateCopies(tmp_path / "history").newest(99) == 0


def test_a_copy_that_the_disk_refused_leaves_nothing_and_is_not_tried_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    copies = StateCopies(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(state_copies.os, "replace", full)
        copies.add(a_state(SPACING_MIN, k="1"))
    assert list(tmp_path.iterdir()) == []
    assert not copies.is_due(a_state(SPACING_MIN + 1, k="1"))
    monkeypatch.setattr(state_copies, "REFUSED_S", 0.0)
    assert copies.is_due(a_state(SPACING_MIN + 1, k="1"))


def test_what_was_left_half_written_is_deleted_at_the_next_start(tmp_path: Path) -> None:
    (tmp_path / f"{10:020d}.tmp").write_bytes(b"half")
    StateCopies(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_whether_a_copy_is_due_may_be_asked_while_another_thread_deletes_one(
    tmp_path: Path,
) -> None:
    (tmp_path / f"{10:020d}.state").touch()
    copies = StateCopies(tmp_path)

    class Meanwhile(dict[str, Any]):
        """Entities that are counted while the damaged copy is found."""

        def __len__(self) -> int:
            assert copies.at(Cas(10)) == EMPTY
            return 0

    far: Any = EMPTY._replace(cas=Cas(2 * SPACING_MIN))._replace(entities=Meanwhile())
    assert copies.is_due(far)
    assert copies.newest(Cas(10)) == 0
