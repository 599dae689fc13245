"""The one table of commands and options, from which both parsers are made: the light one of the hot path (argparse)
and typer's for everything else.
"""

from __future__ import annotations

from typing import Literal

from sshop.core.value import Value

Kind = Literal["text", "integer", "number", "flag"]


class Option(Value):
    """`flags` as typed; `name` as the commands read it."""

    name: str
    flags: tuple[str, ...]
    kind: Kind
    help: str
    default: str | int | float | bool | None = None
    choices: tuple[str, ...] = ()
    metavar: str | None = None


class Argument(Value):
    """A positional word: `one`, `optional` or `many`."""

    name: str
    count: Literal["one", "optional", "many"]
    help: str


class Command(Value):
    """`name` may hold a blank: `ledger verify`. A light one is parsed without typer."""

    name: str
    help: str
    arguments: tuple[Argument, ...] = ()
    options: tuple[Option, ...] = ()
    light: bool = False


LEDGER = Option("ledger", ("--ledger",), "text", "the ledger's file (default: SSHOP_LEDGER, else the state folder)",
                metavar="FILE")  # fmt: skip
POLICIES = Option("policies", ("--policies",), "text", "the folder of policies (default: SSHOP_POLICIES, else the "
                  "nearest policies/ upward, else the shipped one)", metavar="FOLDER")  # fmt: skip
JSON = Option("json", ("--json",), "flag", "print one JSON object on standard output", False)
LOG_FORMAT = Option("log_format", ("--log-format",), "text", "how messages on standard error are written", "text",
                    ("text", "json"))  # fmt: skip
COMMON = (LEDGER, POLICIES, JSON, LOG_FORMAT)

DEAD_AFTER = Option("dead_after", ("--dead-after",), "number", "seconds after which a silent peer counts as gone", 30.0,
                    metavar="SECONDS")  # fmt: skip
WAIT = Option("wait", ("--wait",), "number", "how long to wait for a running command, from its claim; 0 leaves at once "
              "with exit 6", metavar="SECONDS")  # fmt: skip
RECOVER = Option("recover", ("--recover",), "text", "auto: make the attempts that the recovery table allows; look: "
                 "only ask the host; none: stop at the first lost answer", None, ("auto", "look", "none"))  # fmt: skip
STDIN = Option("stdin", ("--stdin",), "text", "the command's standard input; without it, it is empty", metavar="FILE")
OPERATION = Argument("operation", "one", "an operation ID")

COMMANDS: tuple[Command, ...] = (
    Command(
        "run",
        "Run a command on a host, with at most one effect",
        (
            Argument(
                "host", "one", "a name of hosts.yaml, an alias of the OpenSSH configuration, or [user@]host[:port]"
            ),
            Argument(
                "words",
                "many",
                "a catalogue command and its key=value parameters, or nothing, and a raw command after --",
            ),
        ),
        (
            Option(
                "op",
                ("--op",),
                "text",
                "the operation's ID: the same ID with the same request never runs twice",
                metavar="ID",
            ),
            Option(
                "new", ("--new",), "flag", "a second effect is meant, though an equal operation is unresolved", False
            ),
            Option("shell", ("--shell",), "text", "a shell text, run by bash -c", metavar="TEXT"),
            STDIN,
            WAIT,
            Option("follow", ("--follow",), "flag", "show the output as it comes", False),
            RECOVER,
            Option("note", ("--note",), "text", "a note for people, kept in the ledger", metavar="TEXT"),
            Option(
                "exit_passthrough",
                ("--exit-passthrough",),
                "flag",
                "exit with the command's own status, and with 200 + N for sshop's codes",
                False,
            ),
            DEAD_AFTER,
        ),
        light=True,
    ),
    Command(
        "ops",
        "List operations, newest first",
        (),
        (
            Option(
                "state",
                ("--state",),
                "text",
                "only this state",
                None,
                ("open", "succeeded", "failed", "unknown", "cancelled", "duplicate_effect_confirmed"),
            ),
            Option("host", ("--host",), "text", "only this host", metavar="HOST"),
            Option("limit", ("--limit",), "integer", "at most so many", 50, metavar="N"),
            Option("before", ("--before",), "text", "continue a listing before this operation", metavar="ID"),
        ),
        light=True,
    ),
    Command(
        "show",
        "Show one operation: meant, sent, proved, and what is safe now",
        (OPERATION,),
        (),
        light=True,
    ),
    Command(
        "output",
        "Print an operation's recorded output, fetched from its host",
        (OPERATION,),
        (
            Option("stream", ("--stream",), "text", "which one", "out", ("out", "err")),
            Option("offset", ("--offset",), "integer", "first byte, from 0", 0, metavar="N"),
            Option("follow", ("--follow",), "flag", "go on until the command ends", False),
            DEAD_AFTER,
        ),
    ),
    Command("unresolved", "List what was sent and is not settled; exit 1 if there is any"),
    Command(
        "reconcile",
        "Ask the host about an operation and record it; never acts",
        (OPERATION,),
        (
            Option("wait", ("--wait",), "number", "how long to wait for a running command", 0.0, metavar="SECONDS"),
            DEAD_AFTER,
        ),
    ),
    Command(
        "replay",
        "Reconcile, then go on as the recovery table allows",
        (Argument("operation", "optional", "an operation ID, or --all"),),
        (
            Option("all", ("--all",), "flag", "every unresolved operation", False),
            Option("host", ("--host",), "text", "with --all: only this host", metavar="HOST"),
            Option("dry_run", ("--dry-run",), "flag", "ask the hosts, and say what would be done", False),
            Option("yes", ("--yes",), "flag", "do not ask before --all acts", False),
            STDIN,
            WAIT,
            DEAD_AFTER,
        ),
    ),
    Command("fence", "Make sure that an operation that has not run never will", (OPERATION,), (DEAD_AFTER,)),
    Command("cancel", "Fence what has not started, end what runs", (OPERATION,), (DEAD_AFTER,)),
    Command(
        "ledger verify",
        "Check events and projections; exit 1 if they are not whole",
        (),
        (
            Option(
                "head", ("--head",), "text", "a head kept elsewhere, to find a cut-off tail", metavar="SEQUENCE:HASH"
            ),
        ),
    ),
    Command("ledger rebuild", "Make the projections again from the events"),
    Command(
        "ledger fill",
        "Fill an empty ledger with a synthetic history, for benchmarks",
        (Argument("count", "one", "how many events"),),
        (Option("seed", ("--seed",), "integer", "of the random choices", 1, metavar="N"),),
    ),
    Command("policy lint", "Check the policy files and say what is weak in them"),
    Command("demo", "Lose an answer on purpose; show that nothing happens twice"),
    Command(
        "doctor",
        "Say what this machine or a host guarantees, and what to do",
        (Argument("host", "optional", "a host to ask"),),
        (DEAD_AFTER,),
    ),
)


def command(name: str) -> Command:
    """The command of that name. Raises `KeyError`."""
    return {item.name: item for item in COMMANDS}[name]
