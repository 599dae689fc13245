"""Ledgers for tests: the implementations of the port, and histories to put into them."""

import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sshop.core.events import Draft
from sshop.ledger.fill import DECK, WORK, Story, Synthesis
from sshop.ledger.sqlite import SqliteLedger
from sshop.ports import Ledger

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Implementation:
    """`place` makes the location of an empty ledger in a folder, `open` opens it."""

    name: str
    place: Callable[[Path], str]
    open: Callable[[str], Ledger]


IMPLEMENTATIONS = (Implementation("sqlite", lambda folder: str(folder / "ledger.db"), SqliteLedger.open),)


def tell(synthesis: Synthesis, number: int, *, operation_id: str | None = None) -> list[Draft]:
    """The drafts of one operation: the `number`-th kind of outcome, modulo how many there are."""
    _, story_of, works = DECK[number % len(DECK)]
    story = Story(synthesis, synthesis.random.choice(WORK[works]), operation_id)
    story_of(story)
    met = synthesis.take_met()
    return [*met, *story.drafts]


def interleave(histories: Sequence[list[Draft]], seed: int) -> Iterator[Draft]:
    """One history of several, each in its own order, mixed by chance."""
    chance = random.Random(seed)
    left = [list(reversed(history)) for history in histories]
    while left := [history for history in left if history]:
        yield chance.choice(left).pop()


@contextmanager
def writers(location: str, processes: int, count: int) -> Iterator[list["subprocess.Popen[str]"]]:
    """So many processes that append `count` events each; killed at the end where they still run."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.ledger_writer", location, str(count), f"w{index}"],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(processes)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()
