"""What holds of the source, and no tool checks."""

from __future__ import annotations

from coordinator.core.model.stream_records import HwHeartbeat
from tests.support.classes import source_classes

POSITIONAL_MAX = 7
COLUMNS = {"SyncRows"}
"""Made of rows by `zip`, never by hand."""


def test_constructors_with_many_fields_take_keywords() -> None:
    """Of a dozen numbers in a row, two that are swapped are seen by nobody."""
    found = [one for one in source_classes() if "dataclass" in one.decorators]
    assert any(one.name == HwHeartbeat.__name__ and len(one.fields) == 17 for one in found)
    many = {one.name: one.decorators for one in found if len(one.fields) > POSITIONAL_MAX}
    assert {name for name, how in many.items() if "kw_only=True" not in how} == COLUMNS


LINES_MAX, METHODS_MAX = 300, 20
REASON = "Large because "


def test_a_large_class_says_why_and_no_other_does() -> None:
    found = {(one.path, one.name): one for one in source_classes()}
    large = {
        key for key, one in found.items() if one.lines > LINES_MAX or one.methods > METHODS_MAX
    }
    assert large, "none was looked at"
    assert {key for key, one in found.items() if REASON in one.docstring} == large
