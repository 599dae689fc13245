"""Runs as a process of its own: the real program, which kills itself at an event that it writes.

`python -m tests.support.killed MOMENT WHICH WORD...`, where WHICH is the N-th event, from 1, or the first of a type.
Moments of the transaction with that event: `before` (decided, the
write lock held, nothing written), `within` (written, not committed), `after` (committed). Nothing in the product knows
of it.
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence

from sshop.cli import entry
from sshop.core.events import Draft
from sshop.ledger import sqlite
from sshop.ports import LedgerView

MOMENTS = ("before", "within", "after")


def arm(moment: str, which: str) -> None:
    """This process does not live past that moment of the transaction with that event."""
    appended, due = 0, False
    append, project = sqlite.SqliteLedger.append, sqlite.projection.project

    def fall(now: str) -> None:
        if due and now == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched_append(self: sqlite.SqliteLedger, decide: Callable[[LedgerView], Sequence[Draft]]) -> object:
        def decided(view: LedgerView) -> Sequence[Draft]:
            nonlocal appended, due
            drafts = decide(view)
            appended += len(drafts)
            due = appended >= int(which) if which.isdigit() else which in [draft.body.type for draft in drafts]
            fall("before")
            return drafts

        written = append(self, decided)
        fall("after")
        return written

    def watched_project(*arguments: object, **options: object) -> object:
        found = project(*arguments, **options)
        fall("within")
        return found

    sqlite.SqliteLedger.append = watched_append
    sqlite.projection.project = watched_project


if __name__ == "__main__":
    arm(sys.argv[1], sys.argv[2])
    sys.exit(entry.main(sys.argv[3:]))
