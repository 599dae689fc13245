"""The ledger's numbers, as ratios within one run: rows 14 to 16 of the goals.

`python -m tests.bench.bench_ledger [--json] [--folder FOLDER] [--events N]`. What is compared is measured in turns, on
one file system; `--folder` names where.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from sshop.core.events import Draft
from sshop.ledger.fill import Synthesis, fill
from sshop.ledger.sqlite import SqliteLedger

REPOSITORY = Path(__file__).parents[2]
SMALL, LARGE = 10_000, 1_000_000
PROCESSES = 8


def measure(folder: str | None = None, events: int = LARGE) -> dict[str, Any]:
    """All rows; `events` is how large the large ledger is."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="bench-ledger-") as place:
        small, large = Filled(place, SMALL), Filled(place, events)
        return {
            "single": single(small, place),
            "growth": growth(small, large),
            "writers": writers(place),
            "filling": {"events": large.events, "events_per_s": round(large.rate)},
            "verifying": verifying(small),
        }


class Filled:
    """A synthetic ledger of so many events, and the history that goes on from there."""

    def __init__(self, place: str, events: int) -> None:
        self.events = events
        self.path = f"{place}/{events}.db"
        self.ledger = SqliteLedger.open(self.path)
        start = time.perf_counter()
        fill(self.ledger, events)
        self.rate = events / (time.perf_counter() - start)
        self.names = [operation.operation_id for operation in self.ledger.operations(limit=5000)]
        self.more = history(events)

    def append_one(self) -> None:
        drafts = [next(self.more)]
        self.ledger.append(lambda view: drafts)

    def show_one(self, number: int) -> None:
        name = self.names[(number * 997) % len(self.names)]
        self.ledger.operation(name)
        list(self.ledger.events(name))


def history(seed: int) -> Iterator[Draft]:
    """Another history, for what is appended beyond what was filled."""
    return Synthesis(seed + 1).history()


def took(act: Callable[[], None]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


class Raw:
    """A page overwritten and made durable: what the disk itself asks of a write-ahead log."""

    def __init__(self, place: str) -> None:
        self._file = os.open(f"{place}/raw", os.O_RDWR | os.O_CREAT)
        self._page = os.urandom(4120)
        os.pwrite(self._file, b"\0" * 4120 * 1000, 0)
        os.fsync(self._file)
        self._at = 0

    def write(self) -> None:
        os.pwrite(self._file, self._page, self._at % 1000 * 4120)
        self._at += 1
        os.fdatasync(self._file)


def single(filled: Filled, place: str, rounds: int = 2000) -> dict[str, Any]:
    """Row 14: one append against a raw fdatasync, and groups of a hundred against single ones."""
    raw = Raw(place)
    floors, appends, groups = [], [], []
    for number in range(rounds):
        floors.append(took(raw.write))
        appends.append(took(filled.append_one))
        if number % 10 == 0:
            drafts = list(islice(filled.more, 100))
            groups.append(took(lambda drafts=drafts: filled.ledger.append(lambda view: drafts)))
    per_s, grouped_per_s = 1 / median(appends), 100 / median(groups)
    return {
        "fdatasync_ms": ms(median(floors)),
        "append_ms": ms(median(appends)),
        "ratio_to_fdatasync": round(median(appends) / median(floors), 2),
        "single_per_s": round(per_s),
        "grouped_per_s": round(grouped_per_s),
        "grouped_to_single": round(grouped_per_s / per_s, 2),
    }


def growth(small: Filled, large: Filled, rounds: int = 2000) -> dict[str, Any]:
    """Row 15: an append, and one operation's `show`, in a large ledger against a small one."""
    times: dict[str, list[float]] = {"append small": [], "append large": [], "show small": [], "show large": []}
    for number in range(rounds):
        for name, filled in (("small", small), ("large", large)):
            times[f"append {name}"].append(took(filled.append_one))
            times[f"show {name}"].append(took(lambda filled=filled, number=number: filled.show_one(number)))
    medians = {name: median(values) for name, values in times.items()}
    return {
        "events": [small.events, large.events],
        "append_ms": [ms(medians["append small"]), ms(medians["append large"])],
        "append_ratio": round(medians["append large"] / medians["append small"], 2),
        "show_ms": [ms(medians["show small"]), ms(medians["show large"])],
        "show_ratio": round(medians["show large"] / medians["show small"], 2),
    }


def writers(place: str, count: int = 1000) -> dict[str, Any]:
    """Row 16: eight processes that append as fast as they can; their longest wait against the median of one alone."""
    alone = compete(f"{place}/writers.db", 1, count)
    together = compete(f"{place}/writers.db", PROCESSES, count)
    one = median(alone)
    return {
        "processes": PROCESSES,
        "alone_ms": ms(one),
        "median_ms": ms(median(together)),
        "longest_ms": ms(max(together)),
        "longest_to_alone": round(max(together) / one, 1),
    }


def compete(path: str, processes: int, count: int) -> list[float]:
    """Seconds of every append of so many processes that begin together."""
    SqliteLedger.open(path).close()
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.bench.bench_ledger", "--worker", path, str(count), str(index)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(processes)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [seconds for process in started for seconds in json.loads(process.communicate()[0])]


def work(path: str, count: int, index: int) -> None:
    ledger = SqliteLedger.open(path, wait=60)
    drafts = list(islice(history(index + os.getpid()), count))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    times = [took(lambda draft=draft: ledger.append(lambda view: [draft])) for draft in drafts]
    sys.stdout.write(json.dumps(times))


def verifying(filled: Filled) -> dict[str, Any]:
    """Events a second of `verify`, of the chain alone and with the projections."""
    count = filled.ledger.head()[0]
    chain = took(lambda: require(filled.ledger.verify(projections=False).ok))
    whole = took(lambda: require(filled.ledger.verify().ok))
    return {"chain_per_s": round(count / chain), "whole_per_s": round(count / whole)}


def require(good: bool) -> None:
    if not good:
        msg = "the ledger does not verify"
        raise AssertionError(msg)


def ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one object and nothing else")
    parser.add_argument("--folder", help="where to put the ledgers that are measured")
    parser.add_argument("--events", type=int, default=LARGE, help="size of the large ledger")
    parser.add_argument("--worker", nargs=3, metavar=("LEDGER", "COUNT", "INDEX"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker[0], int(options.worker[1]), int(options.worker[2]))
        return
    found = measure(options.folder, options.events)
    if options.json:
        print(json.dumps(found))
        return
    for row, figures in found.items():
        print(row, *(f"{name}={figure}" for name, figure in figures.items()))


if __name__ == "__main__":
    main()
