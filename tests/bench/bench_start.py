"""Starts that speak to no host, against a bare start of Python: row 17 of the goals.

`python -m tests.bench.bench_start [--json]`.
"""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.ground import Bench, ground, in_turns, ratio, summary, tell

ROUNDS = 30
EVENTS = "2000"


def measure() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-start-") as place, ground(Path(place)) as bench:
        bench.call([bench.sshop, "ledger", "fill", EVENTS])
        words = {"version": ["--version"], "ops": ["ops"], "show": ["show", _newest(bench)]}
        times = in_turns(
            {
                "python": lambda: bench.call([bench.python, "-c", "pass"]),
                **{name: lambda end=end: bench.call([bench.sshop, *end]) for name, end in words.items()},
            },
            ROUNDS,
        )
    return {**summary(times), "ratios": {f"17 {name}": ratio(times[name], times["python"]) for name in words}}


def _newest(bench: Bench) -> str:
    argv = [bench.sshop, "ops", "--limit", "1", "--json"]
    text = subprocess.run(argv, env=bench.environ, capture_output=True, check=True).stdout
    return str(json.loads(text)["operations"][0]["operation_id"])


if __name__ == "__main__":
    tell(measure)
