"""Where the `sshop` program begins: the light commands by the light parser, all others by typer."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any, NoReturn

LIGHT = frozenset({"run", "ops", "show"})
HELP = (["--help"], ["-h"], ["help"])


def program() -> NoReturn:
    """The program, from its start to the end of its process.

    What a run imports stays to its end: looking through it for garbage, and taking it down piece by piece at the end,
    costs 60 ms. By then everything is on disk and closed.
    """
    gc.set_threshold(50_000, 20, 20)
    code = main()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        code = code or 1  # whoever read is gone
    os._exit(code)


def main(arguments: list[str] | None = None) -> int:
    """The exit code of the whole program; nothing is raised."""
    _settle_streams()
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words == ["--version"]:
        from sshop import __version__

        sys.stdout.write(f"sshop {__version__}\n")
        return 0
    if not words or words in HELP:
        words = ["--help"]
    raw: list[str] | None = None
    if words[:1] == ["run"] and "--" in words:
        place = words.index("--")
        words, raw = words[:place], words[place + 1 :]
    from sshop.cli import report

    reporter = report.Reporter(
        command=words[0],
        json_log="--log-format=json" in words or _after(words, "--log-format") == "json",
        as_json="--json" in words,
        passthrough="--exit-passthrough" in words,
    )

    def call(name: str, options: dict[str, Any]) -> int:
        from sshop.cli import commands

        if raw is not None:
            options["raw"] = raw
        return commands.call(name, options, reporter)

    try:
        if words[0] in LIGHT:
            from sshop.cli import light
            from sshop.cli.options import command

            return call(words[0], light.parse(command(words[0]), words[1:]))
        from sshop.cli import app

        return app.main(words, call)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2
    except BrokenPipeError:
        return reporter.broken_pipe()
    except KeyboardInterrupt:
        return reporter.interrupted()
    except Exception as error:  # noqa: BLE001 - nothing may end in a traceback
        return reporter.failed(error)


def _settle_streams() -> None:
    """A standard stream that was closed before we came is the null device: nothing else may get its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115 - as Python would have


def _after(words: list[str], flag: str) -> str | None:
    return words[words.index(flag) + 1] if flag in words[:-1] else None


if __name__ == "__main__":
    program()
