"""What is said on standard error, and how an error ends a command: one voice for all commands."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from sshop import errors


class Reporter:
    """Messages in lower case with the `sshop:` prefix, or one JSON object a line."""

    def __init__(self, *, json_log: bool = False) -> None:
        self._json = json_log

    def say(self, message: str, *, hint: str | None = None, **fields: Any) -> None:
        """A message, never raised where standard error is gone."""
        if self._json:
            text = json.dumps({"message": message, "hint": hint, **fields}, ensure_ascii=False) + "\n"
        else:
            text = f"sshop: {escape(message)}\n" + (f"hint: {escape(hint)}\n" if hint else "")
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):
            pass

    def failed(self, error: Exception, *, as_json: bool = False) -> int:
        """The error shown, and its exit code. A fault of ours goes to a file of its own, never to the screen."""
        from sshop.cli import exit_codes

        code = exit_codes.of_error(error)
        if isinstance(error, errors.SshopError):
            name, message, hint = error.code, error.message, error.hint
        else:
            name, message = "fault", f"a fault of sshop itself: {type(error).__name__}: {error}"
            hint = "the ledger keeps what was known; SSHOP_DEBUG=1 shows where it happened"
            if os.environ.get("SSHOP_DEBUG") == "1":
                import traceback

                traceback.print_exception(error)
        operation = getattr(error, "operation_id", None)
        if as_json:
            value = {
                "schema": {"name": "sshop.error", "version": 1},
                "operation_id": operation,
                "next": {"action": "continue" if operation else "correct", "command": None, "why": hint},
                "error": {"code": name, "message": message, "hint": hint},
            }
            sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
        self.say(message, hint=hint, code=name)
        return code

    def broken_pipe(self) -> int:
        """The reader of standard output is gone: nobody is left to be told."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def escape(text: str) -> str:
    """Control characters made visible, so that nothing that a host or a caller wrote can move a terminal's cursor."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
