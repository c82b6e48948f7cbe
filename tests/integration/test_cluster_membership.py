"""Members, indexers and projectors of a real cluster: handing over, leaving, reform, handshakes."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from coordinator import codec
from coordinator.cli.main import app
from coordinator.client.errors import CoordinatorError
from coordinator.core.model.records import (
    ClusterReformed,
    MasterClaimed,
    MasterResigned,
    MemberLeft,
    ProjectorHeartbeat,
)
from tests.integration.cluster import Cluster, an_index, wait_until

pytestmark = pytest.mark.integration


def count(cluster: Cluster, kind: type) -> int:
    return sum(isinstance(record, kind) for record in cluster.records("commit"))


def test_a_master_steps_down_to_whom_is_named_and_no_write_is_refused(cluster: Cluster) -> None:
    heir = cluster.replicas()[-1]
    with cluster.client() as client:
        client.put_config("before", 1)
        answer = client.step_down(heir, reason="upgrade")
        assert answer["master"] == heir
        assert client.put_config("after", 2)["cas"] > 0
        epoch = answer["epoch"]
        again = client.step_down(epoch=epoch - 1)
    assert (again["master"], again["epoch"]) == (heir, epoch)
    cluster.settled_members()
    assert count(cluster, MasterResigned) == 1


def test_a_terminated_master_hands_over_before_it_ends(cluster: Cluster) -> None:
    old = cluster.master()
    with cluster.client() as client:
        client.put_config("accepted", old)
    resigned = count(cluster, MasterResigned)
    cluster.nodes[old].stop()
    cluster.master(other_than=old)
    assert count(cluster, MasterResigned) == resigned + 1
    cluster.nodes[old].start()
    cluster.settled()
    cluster.settled_members()


def test_indexctl_shows_the_master_of_now_whoever_is_asked_first(cluster: Cluster) -> None:
    """The first address may be a node that hangs, or has just come back from that."""
    old = cluster.master()
    epoch = cluster.settled()["epoch"]
    urls = ",".join([cluster.nodes[old].url, *(cluster.nodes[n].url for n in cluster.replicas())])

    def shown(command: str) -> dict[str, Any]:
        result = CliRunner().invoke(app, [command, "--json", "--url", urls])
        assert result.exit_code == 0, result.output
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    cluster.nodes[old].pause()
    try:
        new = cluster.master(other_than=old)
        for command in ("members", "status"):
            found = shown(command)
            assert (found["master"], found["epoch"] > epoch) == (new, True)
            assert found["silent"] == [old]
    finally:
        cluster.nodes[old].resume()
    for _ in range(3):
        found = shown("members")
        assert (found["master"], found["epoch"] > epoch) == (new, True)
    cluster.settled_members()
    assert shown("status")["silent"] == []


def test_a_node_leaves_and_comes_back(cluster: Cluster) -> None:
    with cluster.client() as client:
        with pytest.raises(CoordinatorError) as caught:
            client.leave(99)
        assert caught.value.code == "member_not_found"

        def left() -> tuple[int, dict[str, Any]] | None:
            """Have a node leave; on a busy machine it may just have become the master."""
            master, leaver = cluster.master(), cluster.replicas()[0]
            with pytest.raises(CoordinatorError) as refused:
                client.leave(master)
            assert refused.value.code == "leave_impossible"
            try:
                return leaver, client.leave(leaver)
            except CoordinatorError:
                if cluster.master() != leaver:
                    raise
                return None

        leaver, answer = wait_until(left, "a replica has left")
        assert leaver not in answer["roster"]
        began = time.monotonic()
        client.put_config("without", leaver)
        assert time.monotonic() - began < 30, "nobody waits for who has left"
    reason = wait_until(
        lambda: cluster.ask(leaver, "GET", "/readyz").json()["reason"], "it says that it has left"
    )
    assert "has left the cluster" in reason
    cluster.nodes[leaver].stop()
    cluster.nodes[leaver].start()
    cluster.settled()
    cluster.settled_members()
    assert leaver in cluster.get(leaver, "/v1/members")["roster"]
    assert count(cluster, MemberLeft) == 1


def test_a_projector_registers_by_its_heartbeat(cluster: Cluster) -> None:
    beat = ProjectorHeartbeat(projector=7, incarnation=1, address="projector-7", pid=123, at_ms=0)

    def listed() -> bool:
        cluster.publish("heartbeat", codec.encode(beat))
        rows = cluster.get(cluster.replicas()[0], "/v1/projectors")["projectors"]
        return [(r["id"], r["registered"], r["alive"]) for r in rows] == [(7, True, True)]

    wait_until(listed, "the projector is registered and alive")
    cluster.publish(
        "heartbeat",
        codec.encode(
            ProjectorHeartbeat(projector=251, incarnation=1, address="no", pid=1, at_ms=0)
        ),
    )
    with cluster.client() as client:
        client.put_config("after", "projector 251")
        rows = client.projectors()["projectors"]
    assert not any(r["registered"] for r in rows if r["id"] == 251)


# -- handshakes ----------------------------------------------------------------------------------


def agreed(cluster: Cluster) -> bool:
    rows = cluster.get(cluster.master(), "/v1/indexers")["indexers"]
    return len(rows) == 3 and all((r["handshake"] or {}).get("agreed") for r in rows)


def test_a_new_master_shakes_hands_with_every_indexer(cluster: Cluster) -> None:
    with cluster.client() as client:
        index = client.create_index(an_index("held", slices=3, replicas=1))["index"]
        client.step_down()
    wait_until(lambda: agreed(cluster), "all handshakes agree")
    assert set(index["topology"]["shards"]) == {
        str(host)
        for piece in index["topology"]["slices"]
        for host in (piece["master"], *piece["replicas"])
    }
    assert 0 not in index["topology"]["shards"].values()


def _lose_everything(cluster: Cluster, indexer: int) -> None:
    shutil.rmtree(cluster.indexers[indexer].folder)


def _lose_the_slices(cluster: Cluster, indexer: int) -> None:
    shutil.rmtree(cluster.indexers[indexer].folder / "buckets")


@pytest.mark.parametrize(
    ("lose", "master_too"),
    [
        (_lose_everything, True),
        (_lose_the_slices, False),
        pytest.param(_lose_everything, False, marks=pytest.mark.matrix),
        pytest.param(_lose_the_slices, True, marks=pytest.mark.matrix),
    ],
)
def test_lost_storage_is_allocated_again_and_the_state_says_so(
    cluster: Cluster, lose: Callable[[Cluster, int], None], master_too: bool
) -> None:
    name = f"lost_{lose.__name__.strip('_')}_{master_too}".lower()
    with cluster.client() as client:
        index = client.create_index(an_index(name, slices=3))["index"]
    before = index["topology"]["shards"]
    victim = int(min(before))
    cluster.indexers[victim].kill()
    lose(cluster, victim)
    if master_too:
        master = cluster.master()
        cluster.nodes[master].kill()
        cluster.nodes[master].start()
    cluster.indexers[victim].start()

    def moved() -> dict[str, int]:
        shown = cluster.get(cluster.master(), f"/v1/indexes/{index['id']}?consistency=local")
        after = shown["index"]["topology"]["shards"]
        return after if after[str(victim)] != before[str(victim)] else {}

    after = wait_until(moved, "the state has the new shard")
    assert {i: s for i, s in after.items() if i != str(victim)} == {
        i: s for i, s in before.items() if i != str(victim)
    }
    wait_until(lambda: agreed(cluster), "all handshakes agree")
    cluster.settled()
    cluster.settled_members()
    events = [e.mutation.event for e in cluster.history()]
    assert "ShardsMoved" in events


# -- the last copies -----------------------------------------------------------------------------


def test_without_an_eligible_node_all_say_so_and_a_reform_goes_on(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(indexers=1).start()
    outside = cluster.replicas()[0]
    cluster.nodes[outside].kill()
    with cluster.client() as client:
        acknowledged = client.put_config("without", outside)["cas"]
    others = [n for n in cluster.roster if n != outside]
    for node in others:
        cluster.nodes[node].kill()
    cluster.nodes[outside].start()

    def waits() -> bool:
        body = cluster.get(outside, "/v1/members")
        standing = body["mastership"]
        return standing["state"] == "no_eligible_node" and standing["waiting_for"] == others

    wait_until(waits, "it says that nobody may be elected, and for whom it waits")
    metrics = cluster.ask(outside, "GET", "/metrics").text
    assert 'coordinator_mastership{state="no_eligible_node"} 1.0' in metrics
    assert "no eligible node is alive" in cluster.ask(outside, "GET", "/readyz").json()["reason"]
    with cluster.client(outside, deadline_s=2.0) as client, pytest.raises(CoordinatorError) as no:
        client.put_config("k", 1)
    assert no.value.code == "no_master"
    assert no.value.details["waiting_for"] == others
    claims = count(cluster, MasterClaimed)
    with cluster.client(outside) as client:
        answer = client.reform(1, others, reason="two machines burnt")
        assert answer["roster"] == [outside]
        assert client.get_config("without", consistency="linearizable")["cas"] == acknowledged
        assert client.put_config("alone", True)["cas"] > acknowledged
    assert count(cluster, MasterClaimed) == claims + 1
    (reformed,) = [r for r in cluster.records("commit") if isinstance(r, ClusterReformed)]
    assert (reformed.minimum, reformed.reason) == (1, "two machines burnt")
    for node in others:
        cluster.nodes[node].start()
    cluster.settled()
    cluster.settled_members()


def test_the_log_of_transactions_rolls_within_its_capacity(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(nodes=1, indexers=1, options=("--log-capacity", "5")).start()
    with cluster.client() as client:
        written = [client.put_config("k", number)["txn"] for number in range(12)]
        rows = client.transactions(1_000)["transactions"]
    assert [row["txn"] for row in rows] == written[:-6:-1]
    (node,) = cluster.nodes.values()
    node.kill()
    node.start()
    cluster.settled()
    with cluster.client() as client:
        assert client.transactions(1_000)["transactions"] == rows
