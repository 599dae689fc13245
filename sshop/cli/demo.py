"""`sshop demo`: an answer is lost and found again, on a server of the demo's own, through the real command line.

It says what it does, and it checks what it says: exit 0 means that all of it was true.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sshop import errors
from sshop.cli import exit_codes
from sshop.cli.report import Reporter
from sshop.demo.stage import ALIAS, COMMAND, USER, Stage

NUMBER = "4711"
_PATIENCE = 60.0


def play(options: dict[str, Any], say: Reporter) -> int:
    """0 where everything that was shown is true, else 1."""
    with Stage() as stage:
        scene = _Scene(stage, quiet=options["json"])
        try:
            _tell(scene)
        except (errors.SshopError, OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
            scene.check("the demo came to its end", False, f"{type(error).__name__}: {error}")
        stage.keep = not scene.good
        if options["json"]:
            schema = {"name": "sshop.demo", "version": 1}
            print(json.dumps({"schema": schema, "ok": scene.good, "checks": scene.checks}, ensure_ascii=False))
        if not scene.good:
            failed = "; ".join(str(each["name"]) for each in scene.checks if not each["ok"])
            say.say(f"the demo did not show what it should: {failed}", hint=f"everything is kept in {stage.base}")
        return 0 if scene.good else 1


class _Scene:
    """What is told, run and checked."""

    def __init__(self, stage: Stage, *, quiet: bool) -> None:
        self.stage = stage
        self.checks: list[dict[str, Any]] = []
        self._quiet = quiet
        # the very sshop that runs here, wherever it was started from
        self._environ = stage.environ(os.environ) | {"PYTHONPATH": str(Path(__file__).parents[2])}
        self._step = 0

    @property
    def good(self) -> bool:
        return bool(self.checks) and all(each["ok"] for each in self.checks)

    def tell(self, text: str) -> None:
        self._step += 1
        self.write(f"\n{self._step}. {text}\n")

    def write(self, text: str) -> None:
        if not self._quiet:
            sys.stdout.write(text)
            sys.stdout.flush()

    def check(self, name: str, ok: bool, seen: object = None) -> None:
        """A claim, and whether it holds."""
        self.checks.append({"name": name, "ok": bool(ok), "seen": None if seen is None else str(seen)})
        self.write(f"   {'ok  ' if ok else 'NOT '} {name}{'' if ok or seen is None else f' (seen: {seen})'}\n")

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """The real program, as a person would start it."""
        self.write(f"   $ sshop {' '.join(words)}\n")
        return subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "sshop.cli.entry", *words],
            env=self._environ,
            cwd=self.stage.base,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def end(self, process: subprocess.Popen[bytes], *, show: bool = True) -> tuple[int, str]:
        """Its exit code and its standard output; both streams are shown."""
        out, err = process.communicate(timeout=_PATIENCE)
        text = out.decode("utf-8", "replace")
        if show:
            shown = text + err.decode("utf-8", "replace")
            self.write("".join(f"     {line}\n" for line in shown.splitlines()))
            self.write(f"     exit {process.returncode}: {exit_codes.MEANING.get(process.returncode, '?')}\n")
        return process.returncode, text

    def ask(self, *words: str) -> dict[str, Any]:
        """The same, for the checks: the JSON object of a command that only reads the ledger."""
        argv = [sys.executable, "-m", "sshop.cli.entry", *words, "--json"]
        done = subprocess.run(argv, env=self._environ, cwd=self.stage.base, capture_output=True, timeout=_PATIENCE)  # noqa: PLW1510, S603 - our own program; its exit code is part of the answer
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def _tell(scene: _Scene) -> None:
    from sshop.demo.server import HOST, Server

    stage = scene.stage
    started = time.monotonic()
    scene.write(
        "An SSH server on loopback, with throw-away keys, in a folder of its own. Nothing of yours is touched.\n"
    )
    with Server(stage.home, USER) as server:
        server.write_client_key(stage.client_key)
        stage.write_ssh_files(HOST, server.port, server.host_key)
        operation_id = _lose_the_answer(scene, server)
        _look_at_the_unknown(scene, operation_id)
        _replay(scene, operation_id)
        _look_back(scene, operation_id)
    if scene.good:
        took = time.monotonic() - started
        scene.write(f"\nAll of it was checked, in {took:.1f} s: one answer was lost, and the effect is there once.\n")


def _lose_the_answer(scene: _Scene, server: Any) -> str:
    """The operation's ID."""
    stage = scene.stage
    scene.tell(
        "A command that adds a line to a book, and must not do it twice. The line to the host is cut while it works."
    )
    words = ("run", ALIAS, COMMAND, f"number={NUMBER}", f"book={stage.book}", "--recover", "none")
    process = scene.start(*words)
    end = time.monotonic() + _PATIENCE
    while not stage.at_work() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.005)
    early = stage.lines()
    cut = server.cut()
    code, _ = scene.end(process)
    scene.check("the connection was cut after dispatch, before the answer", cut > 0 and not early, f"{cut}, {early}")
    scene.check("sshop says: unknown, neither failed nor done (exit 5)", code == exit_codes.CODES["unknown"], code)
    found = scene.ask("unresolved")["operations"]
    scene.check("one operation waits to be settled", len(found) == 1, len(found))
    if not found:
        raise ValueError("nothing was dispatched, so there is nothing to replay")
    return str(found[0]["operation_id"])


def _look_at_the_unknown(scene: _Scene, operation_id: str) -> None:
    scene.tell("The ledger knows what left this machine. It does not guess what the host did, and names what is safe.")
    found = scene.ask("show", operation_id)["operation"]
    scene.write(f"     state     {found['state']}\n")
    scene.write(f"     attempt   {found['attempt']['dispatch_state']}, seen to {found['attempt']['boundary']}\n")
    scene.write(f"     safe now  {found['next']['command']}  ({found['next']['why']})\n")
    scene.check("its state is unknown", found["state"] == "unknown", found["state"])
    lost = found["attempt"]["dispatch_state"]
    scene.check("the attempt was sent and got no response", lost == "sent_no_response", lost)


def _replay(scene: _Scene, operation_id: str) -> None:
    scene.tell("Replay. A retry loop would send the command again here; sshop asks the host for its record first.")
    code, _ = scene.end(scene.start("replay", operation_id))
    scene.check("the operation succeeded (exit 0)", code == 0, code)
    found = scene.ask("show", operation_id)
    operation, attempts = found["operation"], found["attempts"]
    scene.check("its result is the first run's, taken from the host", operation["replayed"] is True)
    scene.check("the command was handed to the host once", len(attempts) == 1, len(attempts))
    lines = scene.stage.lines()
    scene.tell("The effect, on the host's disk.")
    scene.write("".join(f"     {line}\n" for line in lines))
    scene.check("the book has one line", lines == [f"payment {NUMBER}"], lines)


def _look_back(scene: _Scene, operation_id: str) -> None:
    scene.tell("The whole story, from events that are appended and never edited.")
    scene.end(scene.start("show", operation_id))
    verified = scene.ask("ledger", "verify")
    scene.check("the ledger's chain of events is whole", verified["ok"] is True, verified)
    scene.check("nothing is unresolved any more", scene.ask("unresolved")["operations"] == [])
