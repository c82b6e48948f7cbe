"""What a projector's client must be set to, so that nothing is lost and the order stays."""

from __future__ import annotations

import threading

from projector_sim.projector.data_sink import DataSink


def test_what_was_handed_over_is_tried_until_it_is_there_in_order() -> None:
    settings = DataSink("127.0.0.1:1", "c", threading.Event(), lambda: None)._settings
    assert settings["message.timeout.ms"] == 0, "a broker that is away ends no stream"
    assert settings["enable.idempotence"]
    assert settings["enable.gapless.guarantee"]
