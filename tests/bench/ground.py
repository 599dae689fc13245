"""What all groups stand on: a venv as users have it, an sshd, and measuring in turns.

What is compared runs in turns, so that whatever else the machine does falls on all alike. A start is measured with the
byte code of an installation at hand: the venv is made by pip, once for each state of the checkout.
"""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tests.support.sshd import Sshd

REPOSITORY = Path(__file__).parents[2]
KEX = "curve25519-sha256"
PEERS = ("ansible-core", "fabric")
CATALOGUE = """\
commands:
  nothing:
    summary: Nothing, once
    category: append_only
    argv: ["true"]
"""


class Bench:
    """The installed program, and settings for it that are the bench's alone."""

    def __init__(self, folder: Path, server: Sshd, venv: Path) -> None:
        self.folder, self.server, self.venv = folder, server, venv
        self.python, self.sshop = str(venv / "bin" / "python"), str(venv / "bin" / "sshop")
        account = server.accounts[server.user]
        self.alias, self.user = account.alias, account.name
        self.ssh_config = str(server.ssh_config_path)
        home = folder / "home"
        home.mkdir()
        (folder / "policies" / "catalogue").mkdir(parents=True)
        (folder / "policies" / "catalogue" / "bench.yaml").write_text(CATALOGUE)
        self.environ = {
            "PATH": f"{venv / 'bin'}:{os.environ.get('PATH', os.defpath)}",
            "HOME": str(home),
            "SSHOP_SSH_CONFIG": self.ssh_config,
            "SSHOP_LEDGER": str(folder / "ledger.sqlite"),
            "SSHOP_POLICIES": str(folder / "policies"),
        }

    def ssh(self, *words: str) -> list[str]:
        """The bare command by ssh, with the key exchange that asyncssh takes."""
        return ["ssh", "-F", self.ssh_config, "-o", f"KexAlgorithms={KEX}", *words, self.alias, "true"]

    def run(self) -> list[str]:
        """The guarded command by the installed program."""
        return [self.sshop, "run", self.alias, "nothing"]

    def call(self, argv: Sequence[str], **changes: str) -> None:
        """To the end of the process. Raises `RuntimeError` with what it said where it fails."""
        done = subprocess.run(
            argv, env={**self.environ, **changes}, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=300, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            said = (done.stdout + done.stderr)[-2000:].decode(errors="replace")
            msg = f"{' '.join(argv)} ended with {done.returncode}: {said}"
            raise RuntimeError(msg)


@contextlib.contextmanager
def ground(folder: Path) -> Iterator[Bench]:
    """An sshd with one account whose login shell is dash, and the program, in a folder that is the bench's alone."""
    with Sshd(users=["dash"]) as server:
        yield Bench(folder, server, installed())


def installed() -> Path:
    """A venv with the program installed as users install it."""
    place = _venv("sshop")
    _install(place, "needs", (REPOSITORY / "pyproject.toml").read_text(), str(REPOSITORY))
    _install(place, "sshop", _state(), "--no-deps", "--force-reinstall", str(REPOSITORY))
    return place


def installed_peers() -> Path:
    """Another one with ansible and Fabric, so that nothing of theirs is found by our imports."""
    place = _venv("peers")
    _install(place, "peers", " ".join(PEERS), *PEERS)
    return place


def _venv(name: str) -> Path:
    place = REPOSITORY / "build" / "bench" / name
    if not (place / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True, env=_plain_environ())
    return place


def _install(place: Path, mark: str, state: str, *words: str) -> None:
    """Once for each state."""
    file = place / f"made-{mark}"
    if file.exists() and file.read_text() == state:
        return
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, *words], env=_plain_environ(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        msg = f"pip could not install {' '.join(words)}: {done.stderr[-2000:]}"
        raise RuntimeError(msg)
    file.write_text(state)


def _plain_environ() -> dict[str, str]:
    """Without PYTHONDONTWRITEBYTECODE and its like: byte code is part of an installation."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def _state() -> str:
    """A digest of all that is installed."""
    digest = hashlib.sha256()
    for folder in ("sshop", "remote_scripts", "policies"):
        for path in sorted((REPOSITORY / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def in_turns(acts: Mapping[str, Callable[[], float | None]], rounds: int, *, before: int = 2) -> dict[str, list[float]]:
    """Seconds of every act, each once a round; an act may measure itself. The first rounds do not count."""
    times: dict[str, list[float]] = {name: [] for name in acts}
    for number in range(before + rounds):
        for name, act in acts.items():
            start = time.perf_counter()
            told = act()
            seconds = time.perf_counter() - start if told is None else told
            if number >= before:
                times[name].append(seconds)
    return times


def summary(times: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Median and minimum of each, in milliseconds."""
    return {name: {"ms": ms(median(each)), "least_ms": ms(min(each))} for name, each in times.items()}


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Of the medians."""
    return round(median(ours) / median(theirs), 3)


def ms(seconds: float) -> float:
    return round(seconds * 1000, 2)


def tell(measure: Callable[[], dict[str, Any]]) -> None:
    """What each group prints when it is called by itself: one object with --json, else a line for each part."""
    found = measure()
    if "--json" in sys.argv[1:]:
        print(json.dumps(found))
        return
    for name, figures in found.items():
        print(name, *(f"{key}={value}" for key, value in figures.items()))
