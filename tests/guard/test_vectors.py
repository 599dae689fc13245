"""The guard takes the examples of docs/PROTOCOL.md byte for byte, under every shell."""

from __future__ import annotations

from typing import Any

import pytest

from tests.guard.wire import Channel, Request, Store
from tests.support.vectors import REQUESTS, raw

SPOKEN = [vector for vector in REQUESTS["requests"] if vector["expect"] is not None]


@pytest.mark.parametrize("vector", SPOKEN, ids=lambda vector: vector["name"])
def test_a_guard_answers_the_example(store: Store, vector: dict[str, Any]) -> None:
    channel = Channel(store, Request(nonce=REQUESTS["nonce"]))
    channel.send(raw(vector["head"]))
    assert channel.read("hello") == "hello"
    channel.send(raw(vector["rest"]))
    if vector["stdin"] is not None:
        data = raw(vector["stdin"])
        channel.send(b"b %d\n" % len(data) + data)
        assert channel.read("spooled") == "spooled"
    channel.send(raw(vector["go"]))
    assert channel.read() == "end"
    answer, expect = channel.close(), vector["expect"]
    assert answer.result["status"] == ("-" if expect["status"] is None else str(expect["status"]))
    assert answer.result["fp"] == vector["fingerprint"]
    assert answer.out == raw(expect["out"])
