"""`sshop doctor [HOST]`: what this machine and a host guarantee, one check a line, and what to do about each weakness.

It makes no operation. On a host it puts the guard there if it is missing, as the first run would, and runs `date` and
`sudo -n true` as read-only commands are run.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

from sshop import errors, question
from sshop.bootstrap import App
from sshop.cli import acting
from sshop.cli.commands import Options
from sshop.cli.report import Reporter, escape, write, write_json
from sshop.conversation import Conversation, Line
from sshop.core import command as commands
from sshop.core import protocol
from sshop.core.operation import Category
from sshop.core.protocol import Frame, Hello, Request
from sshop.core.value import Value, fields_of
from sshop.world import World

OK, WARN, FAIL = "ok", "warn", "fail"
_CLOCK_TOLERANCE_S = 60.0


class Check(Value):
    """`status` is ok, warn or fail; `advice` says what to do where it is not ok."""

    name: str
    status: str
    seen: str
    advice: str | None = None


def examine(options: Options, app: App, say: Reporter) -> int:
    """0 where nothing failed, else 1."""
    checks = [*_here(app, options)]
    if options["host"] is not None:
        checks += asyncio.run(_there(app, options))
    good = not any(check.status == FAIL for check in checks)
    if options["json"]:
        schema = {"name": "sshop.doctor", "version": 1}
        write_json({"schema": schema, "ok": good, "checks": [fields_of(check) for check in checks]})
    else:
        write("".join(_line(check) for check in checks))
        weak = sum(check.status == WARN for check in checks)
        failed = sum(check.status == FAIL for check in checks)
        say.say(f"{len(checks)} checks, {weak} weak, {failed} failed")
    return 0 if good else 1


def _line(check: Check) -> str:
    text = f"{check.status:4}  {check.name:14} {escape(check.seen)}\n"
    return text + (f"{'':20} {escape(check.advice)}\n" if check.advice else "")


def _guarded(name: str, check: Callable[[], list[Check]]) -> list[Check]:
    """What a check raises is its answer."""
    try:
        return check()
    except errors.SshopError as error:
        return [Check(name, FAIL, error.message, error.hint)]


# -- this machine ------------------------------------------------------------------------------------------------------


def _here(app: App, options: Options) -> list[Check]:
    version = ".".join(str(part) for part in sys.version_info[:3])
    return [
        Check("python", OK, f"{version}, {sys.executable}"),
        *_guarded("session", lambda: _session(app)),
        *_guarded("ledger", lambda: _ledger(app)),
        *_guarded("policies", lambda: _policies(app)),
        *_guarded("ssh", lambda: _ssh(app, options["host"])),
    ]


def _session(app: App) -> list[Check]:
    me = app.me()
    return [Check("session", OK, f"{me.session_id}, owned by process {me.owner_pid}, user {me.user}")]


def _ledger(app: App) -> list[Check]:
    ledger = app.ledger()
    found = ledger.verify()
    place = app.ledger_location
    if found.fault is not None:
        sequence, kind = found.fault
        rebuild = "sshop ledger rebuild" if kind == "projection" else "keep this file, and compare it with a copy"
        return [Check("ledger", FAIL, f"{place}: {kind} at event {sequence}", rebuild)]
    checks = [Check("ledger", OK, f"{place}, {found.events} events, whole")]
    waiting = ledger.operations(unresolved=True)
    if waiting:
        checks.append(
            Check("unresolved", WARN, f"{len(waiting)} operations", "sshop unresolved, then sshop replay each of them")
        )
    return checks


def _policies(app: App) -> list[Check]:
    policy = app.policy()
    at = f", commit {policy.commit}" if policy.commit else ""
    return [Check("policies", OK, f"{policy.folder}, {len(policy.entries)} commands, {policy.digest[:12]}{at}")]


def _ssh(app: App, host: str | None) -> list[Check]:
    found = app.survey(host)
    checks = [Check("ssh config", OK, ", ".join(found.config_files) or "none read: OpenSSH's defaults hold")]
    if found.known_hosts:
        checks.append(Check("known_hosts", OK, ", ".join(found.known_hosts)))
    else:
        advice = "connect once with ssh and compare the fingerprint, or add the keys that your team publishes"
        checks.append(Check("known_hosts", WARN, "no file: every host is unknown", advice))
    if found.agent is not None and found.agent_fault is None:
        checks.append(Check("credentials", OK, f"agent {found.agent}, {len(found.identities)} key files"))
    elif found.identities:
        fault = f" (agent {found.agent}: {found.agent_fault})" if found.agent else ""
        checks.append(Check("credentials", OK, ", ".join(found.identities) + fault))
    else:
        fault = f"agent {found.agent}: {found.agent_fault}" if found.agent else "no agent"
        advice = "start an agent (SSH_AUTH_SOCK), or name a key with IdentityFile"
        checks.append(Check("credentials", WARN, f"{fault}, and no key file", advice))
    return checks


# -- a host ------------------------------------------------------------------------------------------------------------


async def _there(app: App, options: Options) -> list[Check]:
    try:
        account, root = app.account(options["host"])
        world = app.world(acting.limits_of(options, app))
    except errors.SshopError as error:
        return [Check("host", FAIL, error.message, error.hint)]
    line = world.line(account, root)
    try:
        return await _ask(world, line)
    finally:
        await line.close()


async def _ask(world: World, line: Line) -> list[Check]:
    started = world.clock.monotonic()
    try:
        connection = await line.connect()
    except errors.HostKeyRefused as error:
        return [Check("host key", FAIL, error.message, error.hint)]
    except errors.SshopError as error:
        return [Check("connection", FAIL, error.message, error.hint)]
    took = (world.clock.monotonic() - started) * 1000
    checks = [
        Check("connection", OK, f"{line.account.key} in {took:.0f} ms, by {connection.authority_ref}"),
        Check("host key", OK, connection.host_key),
    ]
    guard, hello = await _guard(world, line)
    checks.append(guard)
    if hello is None:
        return checks
    checks += _store(world, line, hello)
    checks.append(await _clock(world, line))
    checks.append(await _sudo(world, line))
    return checks


async def _guard(world: World, line: Line) -> tuple[Check, Hello | None]:
    """The guard's first line; put there where it is missing."""
    text = "it answers"
    known = world.ledger.store(line.account.key)
    witnesses = (known.witness_minted, known.witness_brought) if known else ()
    for install in (False, True):
        request = Request(
            verb="hello",
            nonce=world.ids.nonce(),
            clock=world.clock.now(),
            witnesses=tuple(name for name in witnesses if name is not None),
        )
        talk = Conversation(line, request)
        try:
            first = await talk.begin(install=install)
        except errors.GuardUnreachable as error:
            if install:
                return Check("guard", FAIL, error.message, error.hint), None
            text = "it was missing and was put there now, as a first run does"
            continue
        except errors.SshopError as error:
            return Check("guard", FAIL, error.message, error.hint), None
        finally:
            await talk.close()
        if isinstance(first, Frame):
            return Check("guard", FAIL, f"{first.get('code')}: {first.message or ''}", _advice(first)), None
        noise = f"; the login printed: {talk.noise[:200]!r}" if talk.noise else ""
        return Check("guard", OK, text + noise), first
    raise AssertionError


def _advice(refusal: Frame) -> str | None:
    return {
        "bad_store": "look at the owner and the mode of ~/.sshop on the host: 0700, the account's own, no links",
        "no_store": "the home must be there and writable, or hosts.yaml names another folder (root)",
        "no_links": "this file system has no hard links: name another folder in hosts.yaml (root)",
        "no_tool": "install what is named on the host",
        "bad_format": "another version of sshop keeps this store: use that one, or wait for all its operations",
    }.get(refusal.get("code") or "")


def _store(world: World, line: Line, hello: Hello) -> list[Check]:
    known = world.ledger.store(line.account.key)
    checks = []
    if hello.store_id is None and known is None:
        checks.append(Check("store", OK, "none yet: the first run makes it"))
    elif known is None:
        checks.append(Check("store", OK, f"{hello.store_id}, new to this ledger"))
    elif hello.store_id != known.store_id:
        seen = f"{hello.store_id or 'none'}, and this ledger was promised {known.store_id}"
        advice = "re-imaged, failed over or another machine under this name? nothing runs there until a person decides"
        checks.append(Check("store", FAIL, seen, advice))
    elif hello.witness == "gone":
        advice = "the host was set back to an earlier state (a snapshot?); a person decides about what is unresolved"
        checks.append(Check("store", FAIL, f"{hello.store_id}, but a marker that was seen there is gone", advice))
    else:
        checks.append(Check("store", OK, f"{hello.store_id}, as this ledger knows it"))
    match hello.grade:
        case "file_synced" | "all_synced":
            checks.append(Check("durability", OK, f"{hello.grade}: a claim survives a power loss"))
        case _:
            advice = "a power loss can take a claim: sync of GNU coreutils 8.24 or newer would make it durable"
            checks.append(Check("durability", WARN, hello.grade or "unknown", advice))
    checks.append(Check("machine", OK, f"{hello.machine or '-'}, boot {hello.boot or '-'}"))
    checks.append(Check("horizon", OK, f"{hello.horizon or 'none: no marker was ever collected'}"))
    return checks


async def _run(world: World, line: Line, *argv: str) -> tuple[int | None, str]:
    """A read-only command there: its exit status, None where there is no answer, and what it printed."""
    command = commands.Command(tuple(commands.text(word) for word in argv))
    request = Request(
        verb="probe",
        nonce=world.ids.nonce(),
        operation_id=world.ids.mint("op"),
        clock=world.clock.now(),
        command=command,
        category=Category.READ_ONLY,
        timeout_s=10,
        inline_bytes=4096,
    )
    heard = await question.ask(line, request, patience=20)
    if heard.frame is None or heard.frame.word != "result":
        said = heard.frame.message if heard.frame else str(heard.error or "no answer")
        return None, said or "no answer"
    text = (heard.stdout + heard.stderr).decode("utf-8", "backslashreplace").strip()
    return protocol.result(heard.frame).status, text


async def _clock(world: World, line: Line) -> Check:
    before = time.time()
    status, text = await _run(world, line, "date", "+%s")
    after = time.time()
    if status != 0 or not text.isdigit():
        return Check("clock", WARN, f"the host's clock could not be read: {text[:200]}")
    there = int(text)
    off = max(before - (there + 1), there - after, 0.0)
    if off <= _CLOCK_TOLERANCE_S:
        return Check("clock", OK, f"off by {'less than 1' if off < 1 else f'{off:.0f}'} s")
    side = "ahead of" if there > after else "behind"
    advice = "set both clocks: IDs carry the time of this one, and clean-up on the host goes by it"
    return Check("clock", WARN, f"the host is {off:.0f} s {side} this machine", advice)


async def _sudo(world: World, line: Line) -> Check:
    status, text = await _run(world, line, "sudo", "-n", "true")
    if status == 0:
        return Check("sudo", OK, "without a password: commands with `become` run")
    if status == 127 or (status is None and "not found" in text):
        return Check("sudo", OK, "there is none: commands with `become` are refused before they start")
    return Check("sudo", OK, f"not without a password: commands with `become` are refused ({text[:120]})")
