"""The product as a test drives it: `Program` as a process of its own, `Inside` in the test's own process.

Both have a ledger and a policy folder of their own and reach the accounts of a test's sshd by an OpenSSH configuration,
that of a relay, say. `Inside` goes the way of `sshop.cli.acting` without the start of a process: 800 runs need that.
"""

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import sshop
from sshop import reconcile
from sshop.bootstrap import App
from sshop.cli import document, exit_codes
from sshop.config import read_stdin_file
from sshop.conversation import Line
from sshop.core.command import Stdin
from sshop.core.operation import Operation
from sshop.core.policy import Policy
from sshop.core.value import replace
from sshop.ending import exit_name
from sshop.intent import intend
from sshop.ports import Limits, Transport
from sshop.replay import Course, Mode
from sshop.world import Answer, World

# A test's commands, by what an unknown outcome may lead to. Each counts itself in `path` first and then goes on with
# the shell text `then`.
_ARGV = """[/bin/sh, -c, 'printf x >>"$1"; eval "$2"', sh, "{path}", "{then}"]"""
_PARAMS = """{path: {type: path}, then: {type: string, pattern: '(?s:.*)', default: ":"}}"""
CATALOGUE = f"""\
commands:
  add:
    summary: One more byte in {{path}}
    category: append_only
    argv: {_ARGV}
    params: {_PARAMS}
  add-input:
    summary: One more byte in {{path}}, and standard input on both outputs
    category: append_only
    argv: [/bin/sh, -c, 'printf x >>"$1"; tee /dev/stderr; eval "$2"', sh, "{{path}}", "{{then}}"]
    stdin: "the first line\\nthe second line\\n"
    params: {_PARAMS}
  wipe:
    summary: One more byte in {{path}}, destructively
    category: destructive
    argv: {_ARGV}
    params: {_PARAMS}
  see:
    summary: One more byte in {{path}}, as if it only looked
    category: read_only
    argv: {_ARGV}
    params: {_PARAMS}
  settle:
    summary: One byte at least in {{path}}
    category: convergent
    argv: {_ARGV}
    converged_when: [/bin/sh, -c, 'test -s "$1"', sh, "{{path}}"]
    params: {_PARAMS}
  add-late:
    summary: One more byte in {{path}} after {{seconds}} s, within a second
    category: append_only
    argv: [/bin/sh, -c, 'sleep "$2"; printf x >>"$1"', sh, "{{path}}", "{{seconds}}"]
    timeout_s: 1
    params: {{path: {{type: path}}, seconds: {{type: integer, minimum: 0, maximum: 60}}}}
"""


def write_policies(folder: Path, catalogue: str = CATALOGUE, *, policy: str = "") -> Path:
    """A policy folder with this one catalogue file."""
    (folder / "catalogue").mkdir(parents=True, exist_ok=True)
    (folder / "catalogue" / "test.yaml").write_text(catalogue)
    if policy:
        (folder / "policy.yaml").write_text(policy)
    return folder


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    """How a call of the program ended."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.stdout)
        return value

    @property
    def text(self) -> str:
        return self.stderr.decode("utf-8", "replace")


class Program:
    """`sshop` as a process, with settings that are the test's alone."""

    def __init__(
        self,
        folder: Path,
        ssh_config: Path,
        *,
        policies: Path | None = None,
        ledger: Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        home = folder / "client-home"
        home.mkdir(parents=True, exist_ok=True)
        self.ledger = ledger or folder / "ledger.sqlite"
        self.policies = policies or write_policies(folder / "policies")
        self.environ = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(home),
            "PYTHONPATH": str(Path(sshop.__file__).parents[1]),
            "SSHOP_SSH_CONFIG": str(ssh_config),
            "SSHOP_LEDGER": str(self.ledger),
            "SSHOP_POLICIES": str(self.policies),
            **(environ or {}),
        }

    def with_environ(self, **changes: str) -> "Program":
        other = object.__new__(Program)
        other.ledger, other.policies = self.ledger, self.policies
        other.environ = {**self.environ, **changes}
        return other

    def __call__(self, *words: str, data: bytes | None = b"", timeout: float = 60) -> Done:
        done = subprocess.run(
            [sys.executable, "-m", "sshop.cli.entry", *words],
            env=self.environ,
            input=data,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str, script: str | None = None, stdin: int | None = subprocess.DEVNULL) -> subprocess.Popen:
        """The same without waiting; `script` is Python text to run in place of the module's own start."""
        start = ["-m", "sshop.cli.entry"] if script is None else ["-c", script]
        return subprocess.Popen(
            [sys.executable, *start, *words],
            env=self.environ,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


def finish(process: subprocess.Popen, timeout: float = 30) -> Done:
    """Wait for what `Program.start` began."""
    stdout, stderr = process.communicate(timeout=timeout)
    return Done(process.returncode, stdout, stderr)


# Short, so that a line that says nothing costs a test a second.
QUICK = Limits(connect=2.0, handshake=2.0, login=2.0, channel=2.0, dead_after=1.2)


@dataclasses.dataclass(slots=True)
class Ended:
    """An answer as the program gives it: exit code, the object of `--json`, both outputs, the operation."""

    answer: Answer
    code: int
    json: dict[str, Any]

    @property
    def operation(self) -> Operation:
        assert self.answer.operation is not None
        return self.answer.operation

    @property
    def result(self) -> tuple[int | None, bytes | None, bytes | None, str | None, str | None]:
        """What must be the same however it was learned."""
        found = self.operation.result
        assert found is not None
        return found.status, self.answer.stdout, self.answer.stderr, found.stdout_sha256, found.stderr_sha256


class Inside:
    """The same in this process. Each call is one call of the program: it has a connection of its own."""

    def __init__(
        self,
        folder: Path,
        ssh_config: Path,
        *,
        policies: Path | None = None,
        ledger: Path | None = None,
        limits: Limits = QUICK,
        policy: Policy | None = None,
        read_secret: Callable[[str], bytes] = lambda _: b"",
        read_file: Callable[[str], Stdin] = read_stdin_file,
    ) -> None:
        """`policy` stands for the one of the folder."""
        self.environ = {
            "HOME": str(folder),
            "SSHOP_SSH_CONFIG": str(ssh_config),
            "SSHOP_POLICIES": str(policies or write_policies(folder / "policies")),
        }
        self.app = App(self.environ, ledger=str(ledger or folder / "ledger.sqlite"))
        self.limits = limits
        self.policy = policy
        self.read_secret, self.read_file = read_secret, read_file
        self.transport: Transport | None = None

    def world(self) -> World:
        world = self.app.world(self.limits)
        return world if self.transport is None else replace(world, transport=self.transport)

    async def run(
        self,
        host: str,
        *words: str,
        raw: tuple[str, ...] | None = None,
        op: str | None = None,
        new: bool = False,
        recover: str = "auto",
        wait_s: float | None = None,
        tries: int = 1,
        line: Line | None = None,
    ) -> Ended:
        """`line` is one that the caller shares among calls, and closes."""
        policy = self.policy or self.app.policy()
        account, root = self.app.account(host)
        intent = intend(
            policy, account, root, words, raw=raw, shell=None, stdin=None, note=None, new=new, operation_id=op,
            read_secret=self.read_secret, read_file=self.read_file,
        )  # fmt: skip
        world = self.world()
        shared, line = line, line or world.line(account, root)
        course = Course(world, line, Mode(recover, wait_s, tries=tries), command=intent.command)
        return await self._end(line, course.run(intent), close=shared is None)

    async def replay(self, operation_id: str, *, wait_s: float | None = None, tries: int = 5) -> Ended:
        world = self.world()
        operation = world.operation(operation_id)
        line = world.line(operation.account, operation.terms.root)
        course = Course(world, line, Mode("auto", wait_s, operator=True, tries=tries))
        return await self._end(line, course.replay(operation))

    async def look(self, operation_id: str, *, wait_s: float | None = 0) -> Ended:
        world = self.world()
        operation = world.operation(operation_id)
        line = world.line(operation.account, operation.terms.root)
        return await self._end(line, reconcile.look(world, line, operation, wait_s=wait_s))

    async def fence(self, operation_id: str) -> Ended:
        world = self.world()
        operation = world.operation(operation_id)
        line = world.line(operation.account, operation.terms.root)
        return await self._end(line, reconcile.fence(world, line, operation))

    def line(self, host: str) -> Line:
        return self.world().line(*self.app.account(host))

    async def _end(self, line: Line, doing: Any, *, close: bool = True) -> Ended:
        try:
            answer = await doing
            answer.exit = exit_name(answer)
            ended = Ended(answer, exit_codes.CODES[answer.exit], document.operation(answer))
            if answer.after is not None:
                await answer.after()
                assert answer.operation is not None
                ended.answer.operation = self.app.ledger().operation(answer.operation.operation_id)
        finally:
            if close:
                await line.close()
                await asyncio.sleep(0)
        return ended

    def verify(self) -> None:
        """AssertionError unless the ledger's chain and projections are whole."""
        found = self.app.ledger().verify()
        assert found.ok, found.fault

    def close(self) -> None:
        self.app.close()
