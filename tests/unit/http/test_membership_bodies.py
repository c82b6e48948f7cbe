"""What the routes of the Authority take, and what they refuse."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from coordinator.http.membership import ReformBody, StepDownBody


@pytest.mark.parametrize(
    "body",
    [{"successor": True}, {"successor": "2"}, {"epoch": 1.0}, {"reason": "\ud800"}, {"x": 1}],
)
def test_a_body_that_is_nearly_right_deposes_nobody(body: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        StepDownBody.model_validate(body)


def test_a_reform_forgets_numbers_alone() -> None:
    assert ReformBody.model_validate({"minimum": 1, "forget": [2, 3]}).forget == [2, 3]
    for forget in (["2"], [True], [2.0], [0]):
        with pytest.raises(ValidationError):
            ReformBody.model_validate({"minimum": 1, "forget": forget})
