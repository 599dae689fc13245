"""The commands that speak to a host. Ctrl-C and SIGTERM detach: what runs on a host goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from sshop import config, errors, reconcile
from sshop.bootstrap import App
from sshop.cli import document, exit_codes, render
from sshop.cli.commands import Options, print_answer, stored
from sshop.cli.report import Reporter, write, write_json
from sshop.conversation import Line
from sshop.core.operation import Operation
from sshop.core.value import replace
from sshop.ending import exit_name
from sshop.intent import intend, permit
from sshop.ports import Limits
from sshop.replay import Course, Mode
from sshop.world import Answer, World

STOPS = (signal.SIGINT, signal.SIGTERM)
LONGEST_WAIT_S = 31_536_000


def detachable(main: Coroutine[Any, Any, int]) -> int:
    """Run to the end; the first SIGINT or SIGTERM cancels, so that whoever waits can say what it knows."""

    async def guarded() -> int:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()

        def stop() -> None:
            # a further one must not end the process by its signal: the exit code says what is known
            signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
            task.cancel()

        for number in STOPS:
            loop.add_signal_handler(number, stop)
        try:
            return await main
        except asyncio.CancelledError:
            return exit_codes.CODES["unknown"]  # told to stop after the answer was there: the ledger has it

    return asyncio.run(guarded())


def limits_of(options: Options, app: App) -> Limits:
    found = {name: float(value) for name, value in app.policy().limits.items()}
    if options.get("dead_after") is not None:
        if not 0 < options["dead_after"] < float("inf"):
            raise errors.UsageError("--dead-after must be more than 0, and an end")
        found["dead_after"] = options["dead_after"]
    return Limits(**found)


def run(options: Options, app: App, say: Reporter) -> int:
    _check_wait(options)
    policy = app.policy()
    account, root = app.account(options["host"])
    intent = intend(
        policy,
        account,
        root,
        options["words"],
        raw=options.get("raw"),
        shell=options["shell"],
        stdin=None if options["stdin"] is None else config.read_stdin_file(_path(options["stdin"])),
        note=options["note"],
        new=options["new"],
        operation_id=options["op"],
        read_secret=config.secret_reader(os.environ, _read_stdin),
        read_file=config.read_stdin_file,
    )
    world = app.world(limits_of(options, app))
    mode = _mode(app, options["recover"] or policy.recover, options["wait"])

    async def main() -> int:
        line = world.line(account, root)
        watcher = _Follower(world, line) if options["follow"] and not options["json"] else None
        course = Course(world, line, mode, command=intent.command, watch=watcher)
        try:
            try:
                answer = await course.run(intent)
            except asyncio.CancelledError:
                answer = _interrupted(world, course.operation_id)
            shown = await watcher.finish() if watcher else (0, 0)
            code = print_answer(answer, options, say, shown=shown)
            if course.continued and options["op"] is None:
                say.say(f"this continued {course.operation_id}: the same request, declared before and never sent")
            await _acknowledge(answer)
        finally:
            await _hang_up(line)
        return code

    return detachable(main())


def _check_wait(options: Options) -> None:
    if options["wait"] is not None and not 0 <= options["wait"] <= LONGEST_WAIT_S:
        raise errors.UsageError(f"--wait is a number of seconds from 0 to {LONGEST_WAIT_S:,}")


def _read_stdin() -> bytes:
    return sys.stdin.buffer.read()


def _mode(app: App, recover: str, wait_s: float | None, *, operator: bool = False) -> Mode:
    policy = app.policy()
    return Mode(
        recover,
        wait_s,
        operator,
        tries=policy.not_sent_tries,
        first_pause_s=policy.backoff_first_s,
        longest_pause_s=policy.backoff_most_s,
    )


def _path(word: str) -> str:
    return "/dev/stdin" if word == "-" else word


async def _acknowledge(answer: Answer) -> None:
    """At no cost to the person who waits: the answer is printed already. A ledger that fails now loses nothing."""
    if answer.after is not None:
        with contextlib.suppress(errors.LedgerError, asyncio.CancelledError):
            await answer.after()


async def _hang_up(line: Line) -> None:
    """A signal that comes now changes nothing of the answer."""
    with contextlib.suppress(asyncio.CancelledError):
        await line.close()


def _interrupted(world: World, operation_id: str | None) -> Answer:
    if operation_id is None:
        return Answer(None).fail("not_sent", "interrupted", "told to stop; nothing was sent")
    answer = Answer(world.operation(operation_id), left=True)
    answer.fail("unknown", "interrupted", "told to stop; what runs on the host goes on")
    answer.exit = exit_name(answer)
    return answer


class _Follower:
    """Streams both outputs while the command runs, over channels of their own."""

    def __init__(self, world: World, line: Line) -> None:
        self._world, self._line = world, line
        self._tasks: list[asyncio.Task[None]] = []
        self._shown = {"out": 0, "err": 0}

    def __call__(self, operation: Operation) -> None:
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._stream(operation, name)) for name in ("out", "err")]

    async def _stream(self, operation: Operation, name: str) -> None:
        target = sys.stdout.buffer if name == "out" else sys.stderr.buffer
        with contextlib.suppress(errors.SshopError):
            async for data in reconcile.fetch(self._world, self._line, operation, name, follow=True):
                target.write(data)
                target.flush()
                self._shown[name] += len(data)

    async def finish(self) -> tuple[int, int]:
        """How many bytes of each were shown; what came late is for the caller to show."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=1)
            for task in late:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        return self._shown["out"], self._shown["err"]


def _about(options: Options, app: App, act: Callable[[World, Line, Operation], Coroutine[Any, Any, int]]) -> int:
    """One operation of the ledger, and a line to its host account."""
    operation = stored(app, options["operation"])
    world = app.world(limits_of(options, app))

    async def main() -> int:
        line = world.line(operation.account, operation.terms.root)
        try:
            return await act(world, line, operation)
        except asyncio.CancelledError:
            return exit_codes.CODES["unknown"]
        finally:
            await _hang_up(line)

    return detachable(main())


def reconcile_one(options: Options, app: App, say: Reporter) -> int:
    _check_wait(options)

    async def act(world: World, line: Line, operation: Operation) -> int:
        try:
            answer = await reconcile.look(world, line, operation, wait_s=options["wait"])
        except asyncio.CancelledError:
            answer = _interrupted(world, operation.operation_id)
        answer.exit = exit_name(answer)
        if options["json"]:
            seen = [e for e in world.ledger.events(operation.operation_id) if e.type == "lookup.performed"]
            write_json(
                {
                    "schema": {"name": "sshop.reconcile", "version": 1},
                    "operation": document.operation(answer),
                    "observation": document.event(seen[-1]) if seen else None,
                }
            )
            code = exit_codes.CODES[answer.exit]
        else:
            code = print_answer(answer, options, say, action="looked")
        await _acknowledge(answer)
        return code

    return _about(options, app, act)


def fence(options: Options, app: App, say: Reporter) -> int:
    return _close_name(options, app, say, "fence")


def cancel(options: Options, app: App, say: Reporter) -> int:
    return _close_name(options, app, say, "cancel")


def _close_name(options: Options, app: App, say: Reporter, verb: Any) -> int:
    async def act(world: World, line: Line, operation: Operation) -> int:
        try:
            answer = await reconcile.fence(world, line, operation, verb=verb)
            if verb == "cancel" and answer.left and answer.operation is not None:
                answer = await reconcile.look(world, line, answer.operation, wait_s=15)
        except asyncio.CancelledError:
            answer = _interrupted(world, operation.operation_id)
        answer.exit = exit_name(answer)
        if not options["json"]:
            answer.stdout = answer.stderr = None  # it was not what was asked for; `output` prints it
        print_answer(answer, options, say, action=verb)
        await _acknowledge(answer)
        # The question was whether it can still run: an end that is proved is the good answer.
        after = answer.operation
        closed = after is not None and (after.resolved or (verb == "fence" and after.host_state == "fenced"))
        return 0 if closed else exit_codes.CODES[answer.exit]

    return _about(options, app, act)


def output(options: Options, app: App, say: Reporter) -> int:
    async def act(world: World, line: Line, operation: Operation) -> int:
        async for data in reconcile.fetch(
            world, line, operation, options["stream"], offset=options["offset"], follow=options["follow"]
        ):
            write(data)
        if not operation.resolved and not options["follow"]:
            say.say("the command may still be writing: this is what stands on the host now", hint="--follow goes on")
        return 0

    return _about(options, app, act)


def replay(options: Options, app: App, say: Reporter) -> int:
    if options["all"] == (options["operation"] is not None):
        raise errors.UsageError(
            "one operation, or --all", hint="sshop replay OPERATION | sshop replay --all [--host HOST]"
        )
    _check_wait(options)
    if options["all"]:
        found = app.ledger().operations(unresolved=True, host=options["host"])
    else:
        found = [stored(app, options["operation"])]
    if options["all"] and found and not options["dry_run"] and not options["yes"] and not _confirmed(found):
        return exit_codes.CODES["usage"]
    world = app.world(limits_of(options, app))
    mode = _mode(app, "look" if options["dry_run"] else "auto", options["wait"], operator=True)
    stdin = None if options["stdin"] is None else config.read_stdin_file(_path(options["stdin"]))

    async def main() -> int:
        rows = []
        codes = []
        for operation in found:
            line = world.line(operation.account, operation.terms.root)
            try:
                answer, action, why = await _replay_one(
                    world, line, operation, mode, stdin=stdin, allow=partial(permit, app.policy())
                )
                codes.append(exit_codes.CODES[answer.exit])
                rows.append(document.operation(answer) | {"action": action, "why": why})
                if not options["json"]:
                    print_answer(answer, options, say, action=action)
                await _acknowledge(answer)
            finally:
                await _hang_up(line)
        if options["json"]:
            write_json({"schema": {"name": "sshop.replay", "version": 1}, "operations": rows})
        return exit_codes.worst(codes)

    return detachable(main())


def _confirmed(found: list[Operation]) -> bool:
    """Ask a person before many operations are touched; without a terminal nobody is asked, and nothing is done."""
    sys.stderr.write(render.listing(found))
    if not sys.stdin.isatty():
        raise errors.UsageError("--all needs a person's word", hint="--yes, or --dry-run to look first")
    sys.stderr.write(f"replay these {len(found)} operations? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


async def _replay_one(
    world: World, line: Line, operation: Operation, mode: Mode, *, stdin: Any, allow: Callable[[Operation], None]
) -> tuple[Answer, str, str]:
    """The answer, what was done (`adopted attached run skipped fenced needs_decision refused`), and why."""
    from sshop.core import command as commands

    if operation.resolved:
        answer = Answer(operation)
        answer.exit = exit_name(answer)
        return answer, "skipped", f"it is {operation.state} already"
    command = commands.from_json(operation.command)
    if stdin is not None:
        if command.stdin is None or (command.stdin.sha256 or stdin.sha256) != stdin.sha256:
            raise errors.Refused(
                "key_conflict", "that standard input is not the operation's", operation_id=operation.operation_id
            )
        command = replace(command, stdin=replace(command.stdin, data=stdin.data))
    before = len(operation.attempts)
    course = Course(world, line, mode, command=command, permit=allow)
    try:
        if mode.recover == "look":
            answer = await reconcile.look(world, line, operation)
            answer.exit = exit_name(answer)
        else:
            answer = await course.replay(operation)
    except errors.Refused as refused:
        answer = Answer(world.operation(operation.operation_id)).fail(
            exit_codes.REFUSALS[refused.refusal], refused.refusal, refused.message, refused.hint
        )
        return answer, "refused", refused.message
    except asyncio.CancelledError:
        answer = _interrupted(world, operation.operation_id)
    after = answer.operation
    assert after is not None
    if answer.exit == "not_owner":  # an attempt that came meanwhile is the other's
        return answer, "refused", answer.message or ""
    if len(after.attempts) > before and (after.dispatched or after.resolved):
        return answer, "run" if not after.replayed else "adopted", after.resolution or answer.message or "attempted"
    if after.resolved:
        return answer, "fenced" if after.resolved_by == "fence" else "adopted", after.resolution or ""
    if after.host_state == "running":
        return answer, "attached", "it is still running"
    step = document.follow_up(answer)
    return answer, "needs_decision" if step["action"] in ("decide", "approve") else "skipped", str(step["why"])


def doctor(options: Options, app: App, say: Reporter) -> int:
    from sshop.cli.checkup import examine

    return examine(options, app, say)


FUNCTIONS: dict[str, Callable[[Options, App, Reporter], int]] = {
    "run": run,
    "output": output,
    "reconcile": reconcile_one,
    "replay": replay,
    "fence": fence,
    "cancel": cancel,
    "doctor": doctor,
}
