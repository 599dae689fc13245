"""Where the `sshop` program begins: the light commands by the light parser, all others by typer."""

from __future__ import annotations

import gc
import sys
from typing import Any

LIGHT = frozenset({"run", "ops", "show"})


def main(arguments: list[str] | None = None) -> int:
    """The exit code of the whole program; nothing is raised but by `--help`."""
    words = list(arguments or ())
    if arguments is None:
        gc.disable()  # a short life makes little garbage; looking for it takes a tenth of the start
        words = sys.argv[1:]
    if words == ["--version"]:
        from sshop import __version__

        sys.stdout.write(f"sshop {__version__}\n")
        return 0
    from sshop.cli import report

    raw: list[str] | None = None
    if words[:1] == ["run"] and "--" in words:
        place = words.index("--")
        words, raw = words[:place], words[place + 1 :]
    reporter = report.Reporter(json_log="--log-format=json" in words or _after(words, "--log-format") == "json")

    def call(name: str, options: dict[str, Any]) -> int:
        from sshop.cli import commands

        if raw is not None:
            options["raw"] = raw
        return commands.call(name, options, reporter)

    try:
        if words and words[0] in LIGHT:
            from sshop.cli import light
            from sshop.cli.options import command

            return call(words[0], light.parse(command(words[0]), words[1:]))
        from sshop.cli import app

        return app.main(words, call)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2
    except BrokenPipeError:
        return reporter.broken_pipe()
    except Exception as error:  # noqa: BLE001 - nothing may end in a traceback
        return reporter.failed(error, as_json="--json" in words)


def _after(words: list[str], flag: str) -> str | None:
    return words[words.index(flag) + 1] if flag in words[:-1] else None


if __name__ == "__main__":
    sys.exit(main())
