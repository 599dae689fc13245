"""What is written: results on standard output, everything else on standard error, and how an error ends a command.

One voice for all commands, and one JSON object at most on standard output.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from sshop import errors

_DETACHING = frozenset({"run", "replay"})
_answered = False


def write(text: str | bytes) -> None:
    """To standard output, at once. Raises `BrokenPipeError`."""
    data = text.encode("utf-8", "backslashreplace") if isinstance(text, str) else text
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def write_json(value: Any) -> None:
    """The one JSON object of this call; a byte of an argument that is no UTF-8 stands as a lone surrogate's escape."""
    global _answered  # noqa: PLW0603 - standard output is one for the whole process
    _answered = True
    write(json.dumps(value, ensure_ascii=False) + "\n")


class Reporter:
    """Messages in lower case with the `sshop:` prefix, or one JSON object a line."""

    def __init__(
        self, *, command: str = "", json_log: bool = False, as_json: bool = False, passthrough: bool = False
    ) -> None:
        global _answered  # noqa: PLW0603 - see above
        _answered = False
        self._command, self._json_log, self._as_json, self._passthrough = command, json_log, as_json, passthrough

    def say(self, message: str, *, hint: str | None = None, **fields: Any) -> None:
        """A message, never raised where standard error is gone. Lines after the first are set in, so that no text that
        came from elsewhere can pass for a message of ours.
        """
        if self._json_log:
            text = json.dumps({"message": message, "hint": hint, **fields}, ensure_ascii=False) + "\n"
        else:
            text = _block("sshop: ", message) + (_block("hint: ", hint) if hint else "")
        try:
            sys.stderr.flush()
            sys.stderr.buffer.write(text.encode("utf-8", "backslashreplace"))
            sys.stderr.buffer.flush()
        except (OSError, ValueError):
            pass

    def failed(self, error: BaseException) -> int:
        """The error shown, and its exit code. Where a fault of ours happened is shown to who asks with SSHOP_DEBUG."""
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
        return self._end(code, name, message, hint, getattr(error, "operation_id", None))

    def interrupted(self) -> int:
        """Ctrl-C before anything was sent; once a command speaks to a host, it catches that itself."""
        from sshop.cli import exit_codes

        code = exit_codes.CODES["not_sent" if self._command in _DETACHING else "failed"]
        return self._end(code, "interrupted", "told to stop; nothing was sent", None, None)

    def _end(self, code: int, name: str, message: str, hint: str | None, operation: str | None) -> int:
        if self._as_json and not _answered:
            from sshop.cli import document

            value = document.error(self._command, name, message, hint, operation)
            try:
                write_json(value)
            except OSError:
                self.broken_pipe()
        self.say(message, hint=hint, code=name)
        if self._passthrough:
            from sshop.cli import exit_codes

            return exit_codes.passthrough(code, None)
        return code

    def broken_pipe(self) -> int:
        """The reader of standard output is gone: nobody is left to be told."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _block(prefix: str, text: str) -> str:
    first, *rest = text.split("\n")
    return f"{prefix}{escape(first)}\n" + "".join(f"  {escape(line)}\n" for line in rest)


def escape(text: str) -> str:
    """Control characters made visible, so that nothing that a host or a caller wrote can move a terminal's cursor or
    begin a line.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
