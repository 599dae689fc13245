"""The guard's wire, without input or output: encode a request, feed bytes, get frames (docs/PROTOCOL.md).

What a frame means for an operation is not decided here but in `sshop.core.outcome`.
"""

from __future__ import annotations

import re
from typing import Literal

from sshop import errors
from sshop.core import command as commands
from sshop.core.operation import Result
from sshop.core.value import Value, replace

VERSION = "sshop1"
STORE_FORMAT = "1"
_LINE_LIMIT = 65_536
_NOISE_LIMIT = 65_536
_FIELD = re.compile(r"([a-z_]+)=(\S*)")

Verb = Literal["hello", "run", "inquire", "probe", "fence", "cancel", "fetch", "ack"]


class Request(Value):
    """One request to the guard. Lengths in bytes, times in seconds."""

    verb: Verb
    nonce: str
    operation_id: str | None = None
    attempt_id: str | None = None
    clock: str | None = None
    command: commands.Command | None = None
    category: str | None = None
    generation: int = 1
    ground: str = "first"
    claim_seen: tuple[int, str] | None = None
    store_id: str | None = None
    witnesses: tuple[str, ...] = ()
    new: bool = False
    weakest_grade: str | None = None
    timeout_s: int | None = None
    inline_bytes: int | None = None
    wait_s: int | None = None
    record_id: str | None = None
    stream: str | None = None
    offset: int = 0
    length: int | None = None
    follow: bool = False


# The verbs whose request carries the command. All others name it by its fingerprint alone: they need neither its
# standard input nor its secrets, and the guard waits for neither.
CARRYING = ("run", "probe")


def head(request: Request) -> bytes:
    """The lines up to and with `?`."""
    lines: list[str] = [f"{VERSION} {request.nonce} {request.verb}"]
    if request.operation_id is not None:
        lines.append(f"I {request.operation_id}")
    if request.attempt_id is not None:
        lines.append(f"T {request.attempt_id}")
    if request.command is not None:
        lines.append(f"F {commands.fingerprint(request.command)}")
    if request.clock is not None:
        lines.append(f"D {request.clock}")
    if request.category is not None:
        lines.append(f"K {request.category}")
    if request.verb in ("run", "fence", "cancel"):
        lines.append(f"G {request.generation} {request.ground}")
    if request.claim_seen is not None:
        lines.append(f"C {request.claim_seen[0]} {request.claim_seen[1]}")
    if request.store_id is not None:
        lines.append(f"S {request.store_id}")
    lines += [f"W {witness}" for witness in request.witnesses]
    if request.new:
        lines.append("N")
    if request.weakest_grade is not None:
        lines.append(f"Y {request.weakest_grade}")
    if request.timeout_s is not None:
        lines.append(f"L {request.timeout_s}")
    if request.inline_bytes is not None:
        lines.append(f"M {request.inline_bytes}")
    if request.wait_s is not None:
        lines.append(f"P {request.wait_s}")
    elif request.follow:
        lines.append("P -")
    if request.record_id is not None:
        lines.append(f"A {request.record_id}")
    if request.stream is not None:
        lines.append(f"O {request.stream} {request.offset} {'-' if request.length is None else request.length}")
    text = "".join(line + "\n" for line in lines).encode()
    if request.command is not None and request.verb in CARRYING:
        text += commands.wire_frames(request.command)
    return text + b"?\n"


def rest(request: Request) -> bytes:
    """The secret values, between the guard's first line and standard input."""
    if request.command is None or request.verb not in CARRYING:
        return b""
    return commands.secret_frames(request.command)


def stdin_header(length: int) -> bytes:
    return b"b %d\n" % length


def go(*sent: bytes) -> bytes:
    """The line that makes the guard act; `sent` is all text before it, without the bytes of standard input."""
    return b"go %d\n" % sum(part.count(b"\n") for part in sent)


class Frame(Value):
    """One framed line; `data` holds the raw bytes that follow a `data` line."""

    word: str
    fields: dict[str, str]
    message: str | None = None
    data: bytes | None = None

    def get(self, key: str) -> str | None:
        """The value, None where it is absent or `-`."""
        value = self.fields.get(key)
        return None if value in (None, "-") else value

    def integer(self, key: str) -> int | None:
        """Raises `ProtocolError` where the value is no integer."""
        value = self.get(key)
        if value is None:
            return None
        if not re.fullmatch(r"-?[0-9]{1,15}", value):
            raise errors.ProtocolError(f"the guard's `{self.word}` line has no number in {key}: {value[:40]!r}")
        return int(value)


class Reader:
    """Feed the channel's bytes, get frames; noise before, between and with another nonce is kept apart."""

    def __init__(self, nonce: str) -> None:
        self._mark = f"{VERSION} {nonce} ".encode()
        self._buffer = bytearray()
        self._pending: Frame | None = None
        self._wanted = 0
        self._noise = bytearray()
        self._skipping = False
        self.framed = False

    @property
    def noise(self) -> str:
        """What was printed that is no frame, for people; at most 64 KiB."""
        text = bytes(self._noise) + (b"" if self.framed else bytes(self._buffer[:_NOISE_LIMIT]))
        return text.decode("utf-8", "backslashreplace").strip("\n")

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are whole now. Raises `ProtocolError` for a framed line that cannot be read."""
        self._buffer += data
        frames: list[Frame] = []
        while True:
            if self._pending is not None:
                if len(self._buffer) < self._wanted:
                    return frames
                frames.append(replace(self._pending, data=bytes(self._buffer[: self._wanted])))
                del self._buffer[: self._wanted]
                self._pending = None
                continue
            end = self._buffer.find(b"\n")
            if end < 0:
                if len(self._buffer) > _LINE_LIMIT:
                    self._break_off()
                return frames
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            if self._skipping:
                self._skipping = False
                continue
            if end > _LINE_LIMIT:
                self._refuse_long(line)
                line = line[:_LINE_LIMIT]
            if not line.startswith(self._mark):
                self._keep_noise(line + b"\n")
                continue
            self.framed = True
            frame = _parse(line[len(self._mark) :])
            if frame.word == "data":
                self._wanted = frame.integer("bytes") or 0
                if self._wanted < 0:
                    raise errors.ProtocolError("the guard's data has less than no bytes")
                self._pending = frame
            else:
                frames.append(frame)

    def _break_off(self) -> None:
        """Keep the beginning of a line that never ends, and pass over the rest of it."""
        if not self._skipping:
            self._refuse_long(self._buffer)
            self._keep_noise(bytes(self._buffer[:_LINE_LIMIT]) + b"\n")
        self._skipping = True
        self._buffer.clear()

    def _refuse_long(self, line: bytes | bytearray) -> None:
        if line.startswith(self._mark):
            raise errors.ProtocolError(f"the guard's line is longer than {_LINE_LIMIT:,} bytes")

    def _keep_noise(self, line: bytes) -> None:
        if line.strip() and len(self._noise) < _NOISE_LIMIT:
            self._noise += line


def _parse(line: bytes) -> Frame:
    text = line.decode("utf-8", "backslashreplace")
    message = None
    marker = text.find(" msg=")
    if marker >= 0:
        text, message = text[:marker], text[marker + 5 :]
    word, _, fields = text.partition(" ")
    if not re.fullmatch(r"[a-z]+", word):
        raise errors.ProtocolError(f"the guard's line has no word: {text[:80]!r}")
    values = dict(_FIELD.findall(fields))
    if word == "no":
        values["code"] = fields.partition(" ")[0]
    return Frame(word, values, message)


class Hello(Value):
    """The guard's first line: the store, the host, and what stands under the ID and the fingerprint."""

    store_id: str | None
    store_format: str | None
    machine: str | None
    boot: str | None
    grade: str | None
    horizon: str | None
    op_state: str | None
    generation: int | None
    record_id: str | None
    attempt_id: str | None
    twin: str | None
    twin_state: str | None
    witness: str | None


def hello(frame: Frame) -> Hello:
    """Raises `ProtocolError` where the frame is no first line."""
    if frame.word != "hello":
        raise errors.ProtocolError(f"the guard began with `{frame.word}`")
    return Hello(
        store_id=frame.get("store"),
        store_format=frame.get("format"),
        machine=frame.get("machine"),
        boot=frame.get("boot"),
        grade=frame.get("grade"),
        horizon=frame.get("horizon"),
        op_state=frame.get("op"),
        generation=frame.integer("gen"),
        record_id=frame.get("rec"),
        attempt_id=frame.get("att"),
        twin=frame.get("twin"),
        twin_state=frame.get("twinop"),
        witness=frame.get("witness"),
    )


def result(frame: Frame) -> Result:
    """The record of how a command ended. Raises `ProtocolError` where the frame lacks what a result needs."""
    if frame.word != "result" or ("status" not in frame.fields):
        raise errors.ProtocolError("the guard's result cannot be read")
    changed = frame.get("changed")
    return Result(
        record_id=frame.get("rec"),
        generation=frame.integer("gen") or 0,
        status=frame.integer("status"),
        changed=None if changed is None else changed == "1",
        killed=frame.get("killed"),
        before=frame.integer("before"),
        after=frame.integer("after"),
        limit_enforced=frame.get("limit") != "not_enforced",
        milliseconds=frame.integer("ms"),
        stdout_bytes=frame.integer("out") or 0,
        stdout_sha256=frame.get("outsha"),
        stderr_bytes=frame.integer("err") or 0,
        stderr_sha256=frame.get("errsha"),
        sync=frame.get("sync"),
        by_attempt=frame.get("att"),
    )
