"""What a node keeps on disk is its owner's alone; it answers to its own names only."""

from __future__ import annotations

import httpx
import pytest

from tests.integration.cluster import JSON, Cluster, error_of
from tests.support.permissions import open_to_others

pytestmark = pytest.mark.integration


def test_nobody_else_can_look_into_the_folder_of_a_node(cluster: Cluster) -> None:
    cluster.put("kept", 1)
    for child in cluster.nodes.values():
        assert open_to_others(child.folder) == []


def test_a_node_answers_to_its_own_names_only(cluster: Cluster) -> None:
    url = cluster.nodes[1].url
    assert cluster.ask(1, "GET", "/livez").status_code == 200
    rebound = cluster.ask(1, "GET", "/v1/state", headers={"Host": "evil.example"})
    assert (rebound.status_code, error_of(rebound)) == (421, "unknown_host")
    foreign = cluster.ask(1, "GET", "/v1/state", headers={"Origin": "http://evil.example"})
    assert (foreign.status_code, error_of(foreign)) == (403, "foreign_origin")
    form = httpx.post(f"{url}/v1/members/2/leave", content=b"x", trust_env=False)
    assert (form.status_code, error_of(form)) == (415, "unsupported_media_type")
    own = cluster.ask(1, "POST", "/v1/scan", content=b"{}", headers={**JSON, "Origin": url})
    assert error_of(own) == "invalid_request"
