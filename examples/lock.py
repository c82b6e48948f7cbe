"""One leader at a time, whatever dies: `python examples/lock.py NAME WHO`, in several terminals.

The lock is a setting, `locks/NAME`: its holder, and how long the lease lasts without a renewal. The
leader renews it, in one transaction with its work: here it counts up the setting `jobs/NAME`. Set
INDEXCTL_URL to the nodes, with commas. Kill the leader with `kill -9`: another one takes over when
its lease is over.

What you can rely on:

* A CAS only goes up, and a transaction compares it with what the lock has at that moment. So what a
  leader does in such a transaction happens while it holds the lock, or not at all. Nothing else has
  to be trusted: no clock, and no process.
* The CAS is also a fencing token for other systems. They must remember the highest that they have
  seen, and refuse a lower one.

What you cannot: a leader that was paused for longer than its lease *believes* that it leads, until
its next transaction fails. What it does meanwhile without a transaction, and without a token that
somebody checks, nobody prevents. No lock with a lease can.
"""

from __future__ import annotations

import sys
import time
from typing import Any
from uuid import uuid4

from coordinator.client.client import Client
from coordinator.client.errors import CoordinatorError, NotFoundError, UnavailableError

LEASE_S = 3.0
PERIOD_S = LEASE_S / 6


class Lost(Exception):
    """Somebody else holds the lock now."""


class Lock:
    """A lock with a lease. `token` is the CAS of its last renewal."""

    def __init__(self, client: Client, name: str, who: str) -> None:
        self._client = client
        self.key = f"locks/{name}"
        # Two that are called the same are two: the id tells them apart.
        self.mine = {"holder": who, "id": uuid4().hex, "lease_s": LEASE_S}
        self.token = 0

    def acquire(self) -> None:
        """Return when this process holds the lock."""
        seen, since_s = -1, 0.0
        while True:
            try:
                held, cas = self._look()
                if cas != seen:
                    seen, since_s = cas, time.monotonic()
                # By the clock of this process: no two clocks have to agree.
                is_over = held is not None and time.monotonic() - since_s > held["lease_s"]
                if held is None or is_over or held["id"] == self.mine["id"]:
                    self.token = cas  # 0: there is no lock, and must be none.
                    self.transact()
                    return
            except (Lost, UnavailableError):
                pass  # Another one was quicker, or nobody answers: try again.
            time.sleep(PERIOD_S)

    def transact(self, *operations: dict[str, Any]) -> None:
        """Renew the lock and do these operations: all at once, and only if it is still held.

        Raises Lost; UnavailableError, where it may have been done or not: acquire it again.
        """
        renewal = {"put": {"key": f"config/{self.key}", "value": self.mine}}
        compare = [{"key": f"config/{self.key}", "cas": self.token}]
        answer = self._client.transact(compare, [renewal, *operations])
        if not answer["succeeded"]:
            raise Lost
        self.token = answer["results"][0]["cas"]

    def release(self) -> None:
        """Give the lock up, if it is still held: the next one need not wait for the lease."""
        held, cas = self._look()
        # A renewal that was cut off may still come through: then the CAS is another one.
        while held is not None and held["id"] == self.mine["id"]:
            compare = [{"key": f"config/{self.key}", "cas": cas}]
            self._client.transact(compare, [{"delete": {"key": f"config/{self.key}"}}])
            held, cas = self._look()

    def _look(self) -> tuple[dict[str, Any] | None, int]:
        return read(self._client, self.key)


def read(client: Client, key: str) -> tuple[Any, int]:
    """Return a setting as it is now, with its CAS; None with CAS 0: there is none."""
    try:
        found = client.get_config(key, consistency="linearizable")
    except NotFoundError:
        return None, 0
    return found["value"], found["cas"]


def lead(client: Client, lock: Lock, name: str) -> None:
    """Work, until the lock is lost. Go on where the leader before ended: it can do no more."""
    count, _ = read(client, f"jobs/{name}")
    count = count or 0
    while True:
        count += 1
        lock.transact({"put": {"key": f"config/jobs/{name}", "value": count}})
        print(f"did {count}, token {lock.token}", flush=True)
        time.sleep(PERIOD_S)


def main(name: str, who: str) -> None:
    # What is not answered within the lease is too late.
    with Client(principal=who, deadline_s=LEASE_S) as client:
        lock = Lock(client, name, who)
        read(client, lock.key)  # Somebody has to answer once: what fails later is tried again.
        try:
            while True:
                lock.acquire()
                print(f"{who} leads, token {lock.token}", flush=True)
                try:
                    lead(client, lock, name)
                except (Lost, UnavailableError) as error:
                    print(f"{who} does not lead any more: {error or 'lost'}", flush=True)
        finally:
            lock.release()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:]) if len(sys.argv) == 3 else sys.exit(__doc__)
    except KeyboardInterrupt:
        sys.exit(130)
    except CoordinatorError as refused:
        sys.exit(str(refused))
