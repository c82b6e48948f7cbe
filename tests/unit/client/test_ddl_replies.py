"""What is expected of `ddl-replies`, while nobody reads the topic."""

from __future__ import annotations

import threading
from weakref import WeakValueDictionary

from coordinator.client.ddl_replies import Replies
from coordinator.client.errors import error_of


def test_a_repeat_does_not_get_the_failure_of_a_reply_that_was_none() -> None:
    replies = object.__new__(Replies)  # No thread, and no Kafka.
    replies._lock = threading.Lock()
    replies._expected = WeakValueDictionary()
    first = replies.expect("request", 1)
    assert replies.expect("request", 1) is first
    first.reply.set_exception(error_of("bad_response", "no reply"))
    assert not replies.expect("request", 1).reply.done()
