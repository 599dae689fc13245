"""The runner's side of the wire writes and reads the examples byte for byte."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from sshop.core import command as commands
from sshop.core import protocol
from sshop.core.command import Command, Element, Piece, Secret, Stdin
from sshop.core.protocol import Request
from tests.support.vectors import ANSWERS, REQUESTS, raw

named = pytest.mark.parametrize("vector", REQUESTS["requests"], ids=lambda vector: vector["name"])


def element(pieces: list[Any]) -> Element:
    made = []
    for piece in pieces:
        if isinstance(piece, str):
            made.append(Piece("text", raw(piece)))
        elif "id" in piece:
            made.append(Piece("id"))
        else:
            made.append(Piece("hidden", name=piece["hidden"], value=Secret(raw(piece["value"]))))
    return tuple(made)


def command_of(said: dict[str, Any]) -> Command:
    stdin = said.get("stdin")
    data = raw(stdin["data"]) if stdin else b""
    digest = None if stdin and stdin.get("secret") else hashlib.sha256(data).hexdigest()
    return Command(
        argv=tuple(map(element, said["argv"])),
        cwd=raw(said["cwd"]) if "cwd" in said else None,
        env=tuple((name, element(pieces)) for name, pieces in said.get("env", {}).items()),
        secrets=tuple((name, Secret(raw(value))) for name, value in said.get("secrets", {}).items()),
        become_user=said.get("become_user"),
        stdin=Stdin(len(data), digest, Secret(data)) if stdin else None,
        condition=tuple(map(element, said.get("condition", []))),
    )


def request_of(vector: dict[str, Any]) -> Request:
    return Request(
        "run",
        REQUESTS["nonce"],
        operation_id=REQUESTS["operation_id"],
        attempt_id=REQUESTS["attempt_id"],
        command=command_of(vector["command"]),
        category="convergent" if "condition" in vector["command"] else "append_only",
        inline_bytes=1000,
    )


@named
def test_a_request_is_written_as_the_example(vector: dict[str, Any]) -> None:
    request = request_of(vector)
    assert protocol.head(request) == raw(vector["head"])
    assert protocol.rest(request) == raw(vector["rest"])


@named
def test_the_plain_frames_and_the_fingerprint_are_the_examples(vector: dict[str, Any]) -> None:
    command = command_of(vector["command"])
    assert commands.plain_frames(command) == raw(vector["plain"])
    assert commands.fingerprint(command) == vector["fingerprint"]


@named
def test_go_counts_the_lines_before_it(vector: dict[str, Any]) -> None:
    sent = [raw(vector["head"]), raw(vector["rest"])]
    if vector["stdin"] is not None:
        sent.append(protocol.stdin_header(len(raw(vector["stdin"]))))
    assert protocol.go(*sent) == raw(vector["go"])


@pytest.mark.parametrize("vector", ANSWERS["answers"], ids=lambda vector: vector["name"])
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_an_answer_is_read_as_the_example(vector: dict[str, Any], step: int) -> None:
    reader = protocol.Reader(ANSWERS["nonce"])
    data = raw(vector["bytes"])
    frames = [frame for start in range(0, len(data), step) for frame in reader.feed(data[start : start + step])]
    wanted = [
        (word, fields, message, None if body is None else raw(body)) for word, fields, message, body in vector["frames"]
    ]
    assert [(frame.word, frame.fields, frame.message, frame.data) for frame in frames] == wanted
    assert reader.noise == vector["noise"]
