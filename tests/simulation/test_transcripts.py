"""The protocol's scenarios as transcripts: `transcripts/*.txt`, to be read beside `protocol.md`.

`TRANSCRIPTS=write` writes them anew. Whoever changes one says in the commit why it is right.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.core.consensus.inputs import ReadRequested, Stopping
from coordinator.core.model.commands import OK, UNKNOWN, CreateIndex, PutSetting
from tests.simulation.scenes import (
    Caller,
    ask,
    master_of,
    replicas_of,
    run_until,
    serves,
    world_has_members,
)
from tests.simulation.transcript import WIDTH, Transcript

FOLDER = Path(__file__).parent / "transcripts"
PUT = PutSetting("quota", "10")


def a_change(world: Transcript) -> None:
    """A change is committed. (protocol.md: Commit in two phases)"""
    world.say("a client asks the master to change a setting")
    assert ask(world, PUT).status == OK


def an_index(world: Transcript) -> None:
    """An index is created: it is INIT until its indexers have made room. (protocol.md: DDL)"""
    world.say("a client asks the master to create an index")
    command = CreateIndex(name="by_city", bucket="travel", expressions=("city",))
    assert ask(world, command).status == OK


def a_refusal(world: Transcript) -> None:
    """A replica's disk is full: three attempts, then it is left out. (What may fail)"""
    replica = replicas_of(world)[0]
    world.say(f"the disk of node {replica.number} is full; a client asks for a change")
    replica.disk.full = True
    assert ask(world, PUT).status == UNKNOWN
    world.say("there is room again; the client asks once more")
    replica.disk.full = False
    assert ask(world, PUT).status == OK
    run_until(world, world_has_members(world, 3))


def a_silent_replica(world: Transcript) -> None:
    """A replica is silent: the commit expires it. (What may fail during a commit)"""
    replica = replicas_of(world)[0]
    world.say(f"node {replica.number} is cut off; a client asks for a change")
    replica.cut = True
    assert ask(world, PUT).status == OK
    world.say(f"node {replica.number} is back")
    replica.cut = False
    run_until(world, world_has_members(world, 3))


def a_master_that_dies_before_the_verdict(world: Transcript) -> None:
    """The master dies while its proposal is open: the next claim closes it. (Becoming master)"""
    master = master_of(world)
    world.say("a client asks for a change")
    Caller(world, PUT)
    run_until(world, lambda: world.judge.truth.open is not None, step_ms=1)
    world.say(f"node {master.number} dies")
    master.crash()
    run_until(world, lambda: any(map(serves, world.machines.values())))
    assert world.judge.rolled_back == 1


def a_master_that_steps_down(world: Transcript) -> None:
    """The process of the master is told to stop: it hands over first. (Stepping down)"""
    master = master_of(world)
    world.say(f"node {master.number} is told to stop")
    master.feed(Stopping())
    run_until(world, lambda: any(serves(m) for m in world.machines.values() if m is not master))


def a_read(world: Transcript) -> None:
    """The master answers a linearizable read. (The read barrier)"""
    master = master_of(world)
    world.say("a client asks the master for the state of now")
    token = world.token()
    heard: list[int] = []

    class Reader:
        op = reading = None
        _token = token

        def heard(self, token: int, outcome: object) -> None:
            heard.append(token)

    master.ask(ReadRequested(token, world.clock.now + 5_000, True), token, Reader())
    run_until(world, lambda: bool(heard))


def a_wiped_node(world: Transcript) -> None:
    """A node comes back without its folder: it reads the state. (Full synchronisation)"""
    replica = replicas_of(world)[0]
    world.say(f"node {replica.number} dies and loses its folder")
    replica.crash()
    replica.wipe()
    replica.start()
    run_until(world, world_has_members(world, 3))


def too_few_copies(world: Transcript) -> None:
    """Both replicas are away: nothing is proposed. (What may fail during a commit)"""
    world.say("both replicas die; a client asks for a change")
    for replica in replicas_of(world):
        replica.crash()
    assert ask(world, PUT, patience_ms=3_000).status == UNKNOWN


SCENARIOS: list[Callable[[Transcript], None]] = [
    a_change,
    an_index,
    a_refusal,
    a_silent_replica,
    a_master_that_dies_before_the_verdict,
    a_master_that_steps_down,
    a_read,
    a_wiped_node,
    too_few_copies,
]


def transcript_of(scenario: Callable[[Transcript], None]) -> str:
    """Play a scenario on three nodes at rest, and return what they took in and did."""
    world = Transcript(1)
    run_until(world, world_has_members(world, 3))
    run_until(world, lambda: len(master_of(world).node.authority.indexers) == 3)  # type: ignore
    assert ask(world, PutSetting("first", "1")).status == OK
    run_until(world, world.settled)
    world.begin()
    scenario(world)
    told = list(world.told)
    world.heal()
    run_until(world, world.settled)
    world.judge.conclude()
    lines = [scenario.__doc__ or "", *told]
    shown = [
        wrapped
        for line in lines
        for wrapped in textwrap.wrap(line, WIDTH, subsequent_indent=" " * 17) or [""]
    ]
    return "\n".join(shown) + "\n"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
def test_a_scenario_is_played_as_its_transcript_says(
    scenario: Callable[[Transcript], None],
) -> None:
    path = FOLDER / f"{scenario.__name__}.txt"
    found = transcript_of(scenario)
    if os.environ.get("TRANSCRIPTS") == "write":
        path.write_text(found)
    assert found == path.read_text()


def test_every_transcript_is_of_a_scenario() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == {one.__name__ for one in SCENARIOS}
