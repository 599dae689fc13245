"""Runs as a process of its own: appends to a ledger, one event at a time, each made from what it read under the lock.

`python -m tests.support.ledger_writer LEDGER COUNT TAG` prints the sequence of each event once it is durable.
"""

import sys

from sshop.core.events import Draft, SessionOpened
from sshop.ledger.sqlite import SqliteLedger

AT = "2026-01-01T00:00:00.000000Z"


def session(tag: str, number: int) -> Draft:
    return Draft(
        f"ev_{tag}_{number}", AT, f"ses_{tag}_{number}", SessionOpened(tag, number, "1", "machine", "user", "0")
    )


def main() -> int:
    path, count, tag = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    ledger = SqliteLedger.open(path, wait=120)
    for number in range(count):
        seen = []

        def decide(view, number=number, seen=seen):
            seen.append(view.head()[0])
            return [session(tag, number)]

        (event,) = ledger.append(decide)
        if event.seq != seen[0] + 1:
            msg = f"read {seen[0]} under the lock and wrote {event.seq}"
            raise AssertionError(msg)
        sys.stdout.write(f"{event.seq}\n")
        sys.stdout.flush()
    ledger.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
