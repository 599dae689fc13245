"""The commands: each makes what it needs, calls, and prints. They decide nothing about operations."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from sshop import errors
from sshop.bootstrap import App
from sshop.cli import document, exit_codes, render
from sshop.cli.report import Reporter, write, write_json
from sshop.core.identity import check_id
from sshop.core.operation import Operation
from sshop.core.value import fields_of
from sshop.world import Answer

Options = dict[str, Any]
RUNNING_HINT = "it goes on there; attach with the same ID"


def call(name: str, options: Options, say: Reporter) -> int:
    """Run the command of that name; its exit code. Raises what ends it before there is an answer."""
    app = App(
        os.environ,
        ledger=options["ledger"],
        policies=options["policies"],
        creates=name in ("run", "doctor", "ledger fill"),
        notify=say.say,
    )
    try:
        return _FUNCTIONS[name](options, app, say)
    finally:
        app.close()


def _acting(name: str) -> Callable[[Options, App, Reporter], int]:
    """A command that speaks to a host: imported where it is used, since asyncio and the runner cost time."""

    def function(options: Options, app: App, say: Reporter) -> int:
        from sshop.cli import acting

        return acting.FUNCTIONS[name](options, app, say)

    return function


def print_answer(
    answer: Answer, options: Options, say: Reporter, *, shown: tuple[int, int] = (0, 0), action: str | None = None
) -> int:
    """The result on standard output, the story on standard error. `shown` is how much output was streamed already;
    `action` is what was done about an operation that was there before, and is always told.
    """
    code = exit_codes.CODES[answer.exit]
    try:
        _print_result(answer, options, shown)
    except BrokenPipeError:  # whoever read is gone; what became of the operation is still to be said
        say.broken_pipe()
    if code != 0 or action is not None or (answer.operation is not None and answer.operation.replayed):
        step = render.next_line(answer) if code != exit_codes.CODES["failed"] else None
        if answer.message and (answer.operation is None or not answer.operation.resolved):
            said_below = answer.hint is not None and answer.hint in (step or "")
            say.say(answer.message, hint=None if said_below else answer.hint, code=answer.code)
        told = render.outcome_line(answer)
        say.say(f"{action}: {told}" if action else told, hint=step)
    _tell_cut(answer, say)
    if options.get("exit_passthrough"):
        result = answer.operation.result if answer.operation else None
        return exit_codes.passthrough(code, result.status if result else None)
    return code


def _tell_cut(answer: Answer, say: Reporter) -> None:
    """What was left on the host is said, and how to get it."""
    result = answer.operation.result if answer.operation else None
    if result is None or answer.operation is None or answer.stdout is None or answer.stderr is None:
        return
    for name, whole, got in (
        ("out", result.stdout_bytes, len(answer.stdout)),
        ("err", result.stderr_bytes, len(answer.stderr)),
    ):
        if got < whole:
            hint = f"sshop output {answer.operation.operation_id} --stream {name}"
            say.say(f"the first {got:,} of {whole:,} bytes of std{name} came with the answer", hint=hint)


def _print_result(answer: Answer, options: Options, shown: tuple[int, int]) -> None:
    if options["json"]:
        write_json(document.operation(answer))
        return
    if answer.stdout:
        write(answer.stdout[shown[0] :])
    if answer.stderr:
        sys.stderr.flush()
        sys.stderr.buffer.write(answer.stderr[shown[1] :])
        sys.stderr.buffer.flush()


# -- what only reads the ledger ----------------------------------------------------------------------------------------


def stored(app: App, operation_id: str) -> Operation:
    """Raises `UsageError` where the ledger has no such operation."""
    found = app.ledger().operation(check_id(operation_id))
    if found is None:
        raise errors.UsageError(f"the ledger has no operation {operation_id}", hint="`sshop ops` lists them")
    return found


def ops(options: Options, app: App, say: Reporter) -> int:
    if options["limit"] < 1:
        raise errors.UsageError("--limit must be at least 1")
    found = app.ledger().operations(
        state=options["state"], host=options["host"], limit=options["limit"], before=options["before"]
    )
    if options["json"]:
        write_json({"schema": {"name": "sshop.operations", "version": 1}, "operations": [_stored(op) for op in found]})
    else:
        write(render.listing(found))
        if not found:
            say.say("no operations")
    return 0


def _stored(op: Operation) -> dict[str, Any]:
    return document.operation(Answer(op))


def show(options: Options, app: App, _: Reporter) -> int:
    op = stored(app, options["operation"])
    history = list(app.ledger().events(op.operation_id))
    if options["json"]:
        write_json(
            {
                "schema": {"name": "sshop.show", "version": 1},
                "operation": _stored(op),
                "attempts": document.attempts(op),
                "observations": [document.event(item) for item in history if item.type == "lookup.performed"],
                "approvals": [document.event(item) for item in history if item.type.startswith("approval.")],
                "events": [document.event(item) for item in history],
            }
        )
    else:
        write(render.show(op, history))
    return 0


def unresolved(options: Options, app: App, say: Reporter) -> int:
    import datetime as dt

    found = app.ledger().operations(unresolved=True)
    now = dt.datetime.now(dt.UTC)
    review = app.policy().review_after_s
    rows = []
    for op in found:
        since = dt.datetime.fromisoformat(op.created_at)
        rows.append(
            _stored(op)
            | {
                "owner": op.owner,
                "review_at": (since + dt.timedelta(seconds=review)).isoformat().replace("+00:00", "Z"),
                "age_s": max(0, int((now - since).total_seconds())),
                "question": document.follow_up(Answer(op))["why"],
            }
        )
    if options["json"]:
        write_json({"schema": {"name": "sshop.unresolved", "version": 1}, "operations": rows})
    elif found:
        write(render.unresolved(rows))
    else:
        say.say("nothing is unresolved")
    return 1 if found else 0


# -- ledger and policy -------------------------------------------------------------------------------------------------


def ledger_verify(options: Options, app: App, say: Reporter) -> int:
    head = None
    if options["head"] is not None:
        sequence, _, digest = options["head"].partition(":")
        if not (
            sequence.isascii() and sequence.isdecimal() and len(digest) == 64 and set(digest) <= set("0123456789abcdef")
        ):
            raise errors.UsageError(
                f"not a head: {options['head']!r}", hint="SEQUENCE:HASH, as `ledger verify` prints it"
            )
        head = (int(sequence), digest)
    found = app.ledger().verify(head=head)
    fault = None if found.fault is None else {"sequence": found.fault[0], "kind": found.fault[1]}
    if options["json"]:
        write_json(
            {
                "schema": {"name": "sshop.verify", "version": 1},
                "ok": found.ok,
                "events": found.events,
                "head": f"{found.events}:{found.head}",
                "accepted_breaks": found.accepted_breaks,
                "fault": fault,
            }
        )
    elif found.ok:
        write(f"whole: {found.events} events, head {found.events}:{found.head}\n")
        if head is None:
            say.say(
                "a cut-off tail cannot be seen without a head kept elsewhere", hint="keep the head, and give --head"
            )
    else:
        assert found.fault is not None
        write(f"not whole: {found.fault[1]} at event {found.fault[0]}\n")
    return 0 if found.ok else 1


def ledger_rebuild(options: Options, app: App, _: Reporter) -> int:
    count = app.ledger().rebuild()
    if options["json"]:
        write_json({"schema": {"name": "sshop.rebuild", "version": 1}, "operations": count})
    else:
        write(f"{count} operations rebuilt from the events\n")
    return 0


def ledger_fill(options: Options, app: App, _: Reporter) -> int:
    from sshop.bootstrap import fill_ledger

    try:
        count = int(options["count"])
    except ValueError:
        count = 0
    if count < 1:
        raise errors.UsageError(f"not a number of events: {options['count']!r}")
    written = fill_ledger(app, count, options["seed"])
    if options["json"]:
        write_json({"schema": {"name": "sshop.fill", "version": 1}, "events": written})
    else:
        write(f"{written} synthetic events\n")
    return 0


def policy_lint(options: Options, app: App, _: Reporter) -> int:
    from sshop.core.lint import lint

    policy = app.policy()
    found = lint(policy)
    if options["json"]:
        write_json(
            {
                "schema": {"name": "sshop.lint", "version": 1},
                "digest": policy.digest,
                "commit": policy.commit,
                "entries": len(policy.entries),
                "findings": [fields_of(item) for item in found],
            }
        )
    else:
        write("".join(f"{item}\n" for item in found))
        write(f"{len(policy.entries)} entries, {len(found)} findings, digest {policy.digest[:12]}\n")
    return 1 if any(item.level == "warning" for item in found) else 0


def demo(options: Options, _: App, say: Reporter) -> int:
    from sshop.cli.demo import play

    return play(options, say)


_FUNCTIONS: dict[str, Callable[[Options, App, Reporter], int]] = {
    "run": _acting("run"),
    "output": _acting("output"),
    "reconcile": _acting("reconcile"),
    "replay": _acting("replay"),
    "fence": _acting("fence"),
    "cancel": _acting("cancel"),
    "doctor": _acting("doctor"),
    "ops": ops,
    "show": show,
    "unresolved": unresolved,
    "ledger verify": ledger_verify,
    "ledger rebuild": ledger_rebuild,
    "ledger fill": ledger_fill,
    "policy lint": policy_lint,
    "demo": demo,
}
