"""Commands and identifiers as values: what can be sent, what is kept of it, and what tells two requests apart."""

import hashlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sshop import errors
from sshop.core import command as commands
from sshop.core import events, identity
from sshop.core.command import ELEMENT_LIMIT, RESERVED_NAMES, Command, Piece, Secret, Stdin, text
from tests.support.commands import commands_of_any_kind


@settings(max_examples=200)
@given(commands_of_any_kind())
def test_what_is_kept_makes_the_same_request_again(command: Command) -> None:
    value = commands.to_json(command)
    events.canonical(value)
    again = commands.from_json(value)
    assert commands.plain_frames(again) == commands.plain_frames(command)
    assert commands.fingerprint(again) == commands.fingerprint(command)
    assert commands.to_json(again)["argv"] == value["argv"]
    hidden = any(piece.kind == "hidden" for _, element in command.elements() for piece in element)
    assert again.complete == (not hidden and not command.secrets)


PLANTED = b"pl4nted-s3cret"


@given(commands_of_any_kind())
def test_no_secret_is_kept_or_shown(command: Command) -> None:
    planted = Command(
        argv=(*command.argv, (Piece("hidden", name="word", value=Secret(PLANTED)),)),
        env=(("WITHIN", (Piece("text", b"x="), Piece("hidden", name="word", value=Secret(PLANTED)))),),
        secrets=(("TOKEN", Secret(PLANTED)),),
        stdin=Stdin(len(PLANTED), None, Secret(PLANTED)),
    )
    kept = events.canonical(commands.to_json(planted)) + commands.display(planted).encode() + repr(planted).encode()
    kept += str(planted.secrets[0][1]).encode() + commands.plain_frames(planted)
    assert PLANTED not in kept
    assert hashlib.sha256(PLANTED).hexdigest().encode() not in kept
    assert "<word>" in commands.display(planted)
    assert "TOKEN=<secret>" in commands.display(planted)


def test_the_fingerprint_is_the_hash_of_the_frames_of_the_document() -> None:
    command = Command(
        argv=(text("sh"), text("a\nb"), (Piece("id"), Piece("hidden", name="n", value=Secret(b"v")))),
        cwd=b"/srv", env=(("B", text("2")), ("A", text("1"))), secrets=(("T", Secret(b"s")),), become_user="web",
        stdin=Stdin(3, None, Secret(b"abc")), condition=(text("test"),),
    )  # fmt: skip
    frames = b"a sh\na a\n+b\na \ni\nh n\nd /srv\ne A=1\ne B=2\ns T\nu web\nz 3 secret\n"
    assert commands.plain_frames(command) == frames
    assert commands.fingerprint(command) == hashlib.sha256(frames).hexdigest()


BASE = Command(argv=(text("do"),), secrets=(("T", Secret(b"one")),))


def test_secrets_tell_requests_apart_only_in_their_own_part() -> None:
    key = b"k" * 32
    other = Command(argv=(text("do"),), secrets=(("T", Secret(b"two")),))
    assert commands.fingerprint(BASE) == commands.fingerprint(other)
    assert commands.secret_fingerprint(BASE, key) != commands.secret_fingerprint(other, key)
    assert commands.secret_fingerprint(BASE, key) != commands.secret_fingerprint(BASE, b"q" * 32)
    assert commands.secret_fingerprint(Command(argv=(text("do"),)), key) is None


def test_secret_values_cannot_be_moved_between_names_unseen() -> None:
    key = b"k" * 32
    pairs = [(b"ab", b"c"), (b"a", b"bc"), (b"", b"abc"), (b"c", b"ab")]
    made = {
        commands.secret_fingerprint(Command(argv=(text("x"),), secrets=(("A", Secret(a)), ("B", Secret(b)))), key)
        for a, b in pairs
    }
    assert len(made) == len(pairs)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: Command(argv=()), "empty"),
        (lambda: Command(argv=(text("a\0b"),)), "NUL"),
        (lambda: Command(argv=(text("a"),), cwd=b"\0"), "NUL"),
        (lambda: Command(argv=(text("a"),), env=(("A", text("\0")),)), "NUL"),
        (lambda: Command(argv=(text("a"),), secrets=(("A", Secret(b"\0")),)), "NUL"),
        (lambda: Command(argv=((Piece("hidden", name="n", value=Secret(b"\0")),),)), "NUL"),
        (lambda: Command(argv=(text("a"),), condition=(text("\0"),)), "NUL"),
        (lambda: Command(argv=(text("x" * (ELEMENT_LIMIT + 1)),)), "long"),
        (lambda: Command(argv=(text("x"),), env=(("NAME", text("x" * (ELEMENT_LIMIT - 4))),)), "long"),
        (lambda: Command(argv=(text("x"),), secrets=(("A", Secret(b"x" * (ELEMENT_LIMIT + 1))),)), "long"),
        (lambda: Command(argv=tuple(text("x" * 130_000) for _ in range(8))), "in all"),
        (lambda: Command(argv=(text("x"),), env=(("1A", text("")),)), "cannot be set"),
        (lambda: Command(argv=(text("x"),), env=(("A=", text("")),)), "cannot be set"),
        (lambda: Command(argv=(text("x"),), env=(("A", text("")),), secrets=(("A", Secret(b"")),)), "twice"),
        (lambda: Command(argv=(text("x"),), become_user="-x"), "user name"),
        (lambda: Command(argv=(text("x"),), become_user="a b"), "user name"),
        (lambda: Command(argv=(text("x"),), stdin=Stdin((1 << 30) + 1, "0" * 64)), "longer"),
        *[(lambda name=name: Command(argv=(text("x"),), env=((name, text("")),)), "cannot be set")
          for name in sorted(RESERVED_NAMES)],
    ],
)  # fmt: skip
def test_what_no_host_could_receive_is_refused_at_birth(made: Any, words: str) -> None:
    with pytest.raises(errors.UsageError, match=words):
        made()


def test_what_a_host_can_just_receive_is_taken() -> None:
    Command(argv=(text("x" * ELEMENT_LIMIT),))
    Command(argv=(text("x"),), env=(("NAME", text("x" * (ELEMENT_LIMIT - 5))),))
    Command(argv=tuple(text("x" * 130_000) for _ in range(7)))


# -- identifiers ----


@pytest.mark.parametrize("name", ["a", "A", "0", "a.b_c-D", "a" * 128, "op_x", "..".join("ab")])
def test_an_operation_id_may_be_so(name: str) -> None:
    assert identity.check_id(name) == name


@pytest.mark.parametrize(
    "name", ["", ".a", "-a", "_a", "a b", "a/b", "a+1", "a\n", "\na", "a" * 129, "ä", "a\0", "a:b", "../a", "a'b"]
)
def test_an_operation_id_may_not_be_so(name: str) -> None:
    with pytest.raises(errors.UsageError, match="not an operation ID"):
        identity.check_id(name)


@given(st.integers(0, 2**48 - 1), st.binary(min_size=10, max_size=10))
def test_a_minted_id_carries_its_time_and_sorts_by_it(milliseconds: int, entropy: bytes) -> None:
    name = identity.mint("op", milliseconds, entropy)
    assert identity.is_minted(name)
    assert identity.check_id(name) == name
    assert identity.minted_at(name) == milliseconds
    if milliseconds < 2**48 - 1:
        assert name < identity.mint("op", milliseconds + 1, bytes(10))


@pytest.mark.parametrize(
    "name",
    ["op_", "op_01ARYZ6S41TST9ZZ0GPQ8N9JVQ", "op_81aryz6s41tst9zz0gpq8n9jvq", "op_01aryz6s41tst9zz0gpq8n9jv",
     "op_01aryz6s41tst9zz0gpq8n9jvqq", "xp_01aryz6s41tst9zz0gpq8n9jvq", "op_01aryz6s41tst9zz0gpq8n9jvi",
     "op_01aryz6s41tst9zz0gpq8n9jvq\n"],
)  # fmt: skip
def test_everything_else_counts_as_brought(name: str) -> None:
    assert not identity.is_minted(name)
