"""The file of `indexctl backup`: whole or not there, whoever else writes it at the same time."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coordinator.backup.contents import BackupWriter, Manifest
from coordinator.cli.backup import HALF, written
from coordinator.cli.main import app
from coordinator.cli.output import CommandError
from coordinator.core.catalog.state import EMPTY
from coordinator.core.model import digest
from coordinator.core.model.types import Cas
from tests.support.views import AUTHORITY

OTHER = """
import sys
from pathlib import Path
from coordinator.cli.backup import written

with written(Path(sys.argv[1])) as out:
    out.write(b"the other's, ")
    out.flush()
    print("writes", flush=True)
    sys.stdin.readline()
    out.write(b"whole")
"""


def half_of(file: Path) -> Path:
    return file.with_name(file.name + HALF)


def code_of(file: Path, *, force: bool = False) -> str:
    """Return the code that writing a file ends with."""
    with pytest.raises(CommandError) as refused, written(file, force=force) as out:
        out.write(b"mine")
    return refused.value.code


@pytest.mark.parametrize("force", [False, True])
def test_of_two_processes_that_write_one_file_the_second_is_refused(
    tmp_path: Path, force: bool
) -> None:
    file = tmp_path / "a.backup"
    command = [sys.executable, "-c", OTHER, str(file)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "writes\n"
        assert code_of(file, force=force) == "backup_under_way"
        assert not file.exists()
        other.communicate("go on\n")
    assert other.returncode == 0
    assert file.read_bytes() == b"the other's, whole"
    assert code_of(file) == "exists"
    assert file.read_bytes() == b"the other's, whole"
    assert [*tmp_path.iterdir()] == [file]


def test_what_a_killed_process_has_left_is_written_anew(tmp_path: Path) -> None:
    file = tmp_path / "a.backup"
    half_of(file).write_bytes(b"half of a longer one")
    half_of(file).chmod(0o644)
    with written(file) as out:
        out.write(b"whole")
    assert file.read_bytes() == b"whole"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [*tmp_path.iterdir()] == [file]


def test_a_file_that_is_replaced_is_the_old_one_until_the_new_one_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "a.backup"
    file.write_bytes(b"old")
    with written(file, force=True) as out:
        out.write(b"new")
        out.flush()
        assert file.read_bytes() == b"old"
    assert file.read_bytes() == b"new"
    with suppress(ZeroDivisionError), written(file, force=True) as out:
        out.write(b"half")
        raise ZeroDivisionError
    assert file.read_bytes() == b"new"
    assert [*tmp_path.iterdir()] == [file]
    assert code_of(tmp_path / "no-folder" / "a.backup") == "backup_failed"


@pytest.mark.thorough
def test_what_a_backup_has_is_told_with_its_time_in_utc_and_to_programs_in_ms(
    tmp_path: Path,
) -> None:
    manifest = Manifest(
        cluster="c",
        cluster_id="id",
        cas=Cas(0),
        digest=digest.text(EMPTY.digest),
        history_after=Cas(0),
        made_at_ms=1_795_602_936_153,
        version="1",
    )
    authority = replace(
        AUTHORITY, cluster_id=manifest.cluster_id, last_cas=EMPTY.cas, digest=EMPTY.digest
    )
    file = tmp_path / "empty.backup"
    with file.open("wb") as out:
        writer = BackupWriter(out, manifest, authority)
        writer.base(EMPTY)
        writer.end(EMPTY)
    told = CliRunner().invoke(app, ["restore", str(file), "--check"]).stdout.splitlines()
    assert [line.split("  ")[-1] for line in told if "made at" in line] == [
        "2026-11-25 10:35:36 UTC"
    ]
    assert not [line for line in told if "made at ms" in line]
    for_programs = CliRunner().invoke(app, ["restore", str(file), "--check", "--json"]).stdout
    assert json.loads(for_programs)["checked"]["made_at_ms"] == manifest.made_at_ms
