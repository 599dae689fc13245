"""One example of each verb: the runner's side writes it byte for byte, and the guard answers it, under every shell."""

from __future__ import annotations

from typing import Any

import pytest

from sshop.core import protocol
from sshop.core.command import Command, Piece
from tests.guard.wire import Channel, Request, Store
from tests.support.vectors import load, raw

EXAMPLES = load("verbs.json")
named = pytest.mark.parametrize("vector", EXAMPLES["vectors"], ids=lambda vector: vector["name"])


@named
def test_the_runners_side_writes_the_example(vector: dict[str, Any]) -> None:
    said = dict(vector["request"])
    if "argv" in said:
        said["command"] = Command(argv=tuple((Piece("text", raw(word)),) for word in said.pop("argv")))
    for name in ("claim_seen", "witnesses"):
        if name in said:
            said[name] = tuple(said[name])
    request = protocol.Request(vector["verb"], EXAMPLES["nonce"], **said)
    assert protocol.head(request) == raw(vector["head"])
    assert vector["go"] in ("", protocol.go(raw(vector["head"])).decode())


@named
def test_the_guard_answers_the_example(store: Store, vector: dict[str, Any]) -> None:
    channel = Channel(store, Request(nonce=EXAMPLES["nonce"]))
    channel.send(raw(vector["head"]))
    assert channel.read("hello") == "hello"
    channel.send(raw(vector["go"]))
    channel.read("end")
    answer = channel.close()
    expect = dict(vector["expect"])
    assert answer.words == expect.pop("words")
    for word, keys in expect.items():
        assert {key: answer.get(word)[key] for key in keys} == keys
