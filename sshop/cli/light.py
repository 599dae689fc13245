"""The parser of the hot path: argparse from the option table. It knows the light commands alone."""

from __future__ import annotations

import argparse
import os
from typing import Any, NoReturn

from sshop import errors
from sshop.cli.options import COMMON, Command, Option

_TYPES = {"text": str, "integer": int, "number": float}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        hint = f"{self.prog} --help"
        if self.prog == "sshop run" and message.startswith("unrecognized arguments"):
            hint = f"a raw command and its options stand after --: sshop run HOST -- ARGV…; else: {hint}"
        raise errors.UsageError(message, hint=hint)


def _formatter(prog: str) -> argparse.HelpFormatter:
    """As wide as the terminal. argparse would ask shutil, and so import three compressors at every start."""
    try:
        width = int(os.environ.get("COLUMNS") or os.get_terminal_size().columns)
    except (ValueError, OSError):
        width = 80
    return argparse.HelpFormatter(prog, width=max(40, width - 2))


def _add(parser: argparse.ArgumentParser, option: Option) -> None:
    if option.kind == "flag":
        parser.add_argument(*option.flags, dest=option.name, action="store_true", help=option.help)
        return
    parser.add_argument(
        *option.flags,
        dest=option.name,
        type=_TYPES[option.kind],
        default=option.default,
        choices=option.choices or None,
        metavar=option.metavar,
        help=option.help.replace("%", "%%"),
    )


def parse(command: Command, words: list[str]) -> dict[str, Any]:
    """The options of a light command. Raises `UsageError`; `--help` prints and raises `SystemExit`."""
    parser = _Parser(prog=f"sshop {command.name}", description=command.help, allow_abbrev=False, add_help=False,
                     formatter_class=_formatter)  # fmt: skip
    for argument in command.arguments:
        count = {"one": None, "optional": "?", "many": "*"}[argument.count]
        default: list[str] | None = [] if argument.count == "many" else None
        parser.add_argument(argument.name, nargs=count, default=default, help=argument.help)
    for option in (*command.options, *COMMON):
        _add(parser, option)
    parser.add_argument("--help", action="help", help="show this and exit")
    return vars(parser.parse_intermixed_args(words))
