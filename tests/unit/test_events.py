"""Events: canonical bytes, the chain of digests, and the way back from what is stored."""

import hashlib
import json
import typing
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from sshop.core import events
from sshop.core.events import GENESIS, TYPES, Draft
from tests.support.histories import histories

# Text of JSON: any but lone surrogates, which no UTF-8 can hold.
texts = st.text(st.characters(exclude_categories=("Cs",)))
keys = st.text(st.characters(min_codepoint=0, max_codepoint=127))
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_canonical_bytes_are_those_of_rfc_8785(value: Any) -> None:
    assert events.canonical(value) == rfc8785.dumps(value)


def test_the_escapes_of_every_control_character_are_those_of_rfc_8785() -> None:
    text = "".join(map(chr, range(0x100))) + "\u2028\u2029\ufeff\U0001f600"
    assert events.canonical(text) == rfc8785.dumps(text)


@given(histories())
def test_every_event_comes_back_from_its_bytes(history: list[events.Event]) -> None:
    for item in history:
        stored = events.body_bytes(item.body)
        again = events.decode_body(item.type, stored)
        assert again == item.body
        assert events.body_bytes(again) == stored == rfc8785.dumps(json.loads(stored))


@pytest.mark.parametrize("type_", TYPES)
def test_a_body_of_each_type_comes_back_and_wants_its_fields(type_: str) -> None:
    cls = TYPES[type_]
    body = cls(**dict.fromkeys(cls.__slots__, "x"))
    assert events.decode_body(type_, events.body_bytes(body)) == body
    for broken in ("{}", '{"nobody": 1}', "[]", "no json"):
        with pytest.raises((KeyError, TypeError, ValueError)):
            events.decode_body(type_, broken)
    with pytest.raises(KeyError):
        events.decode_body("no.such.type", "{}")


def test_the_union_has_every_class_and_each_type_once() -> None:
    classes = typing.get_args(events.AnyBody)
    assert {cls.type for cls in classes} == set(TYPES)
    assert len(classes) == len(TYPES) == len(set(events.Body.__subclasses__()))


def test_a_digest_is_the_hash_of_the_envelope_as_the_document_says() -> None:
    body = events.PolicyLoaded("d" * 64, None)
    draft = Draft("ev_1", "2026-01-01T00:00:00.000000Z", "ses_1", body, "op_1", "att_1")
    stored = events.body_bytes(body)
    envelope = {
        "seq": 7, "id": "ev_1", "at": draft.at, "session": "ses_1", "operation": "op_1", "attempt": "att_1",
        "type": "policy.loaded", "body": hashlib.sha256(stored).hexdigest(), "prev": GENESIS,
    }  # fmt: skip
    assert events.digest(7, draft, stored, GENESIS) == hashlib.sha256(rfc8785.dumps(envelope)).hexdigest()


def test_any_change_of_an_event_changes_its_digest() -> None:
    body = events.PolicyLoaded("d", None)
    base = {"id": "ev", "at": "t", "session_id": "s", "body": body, "operation_id": None, "attempt_id": None}
    seen = {events.digest(1, Draft(**base), b"{}", GENESIS)}
    for change in (
        {"id": "e2"}, {"at": "u"}, {"session_id": "z"}, {"operation_id": "o"}, {"attempt_id": "o"},
        {"body": events.ApprovalSpent("a")},
    ):  # fmt: skip
        seen.add(events.digest(1, Draft(**{**base, **change}), b"{}", GENESIS))
    seen.add(events.digest(2, Draft(**base), b"{}", GENESIS))
    seen.add(events.digest(1, Draft(**base), b"[]", GENESIS))
    seen.add(events.digest(1, Draft(**base), b"{}", "1" * 64))
    assert len(seen) == 10
