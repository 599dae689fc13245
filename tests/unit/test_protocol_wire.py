"""The wire without a channel: what is sent can be taken apart again, and what arrives is read however it arrives."""

import hashlib
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sshop import errors
from sshop.core import command as commands
from sshop.core import protocol
from sshop.core.command import Command, Piece, Secret, Stdin, text
from sshop.core.protocol import Frame, Reader, Request
from tests.support.commands import commands_of_any_kind

NONCE = "0123456789abcdef" * 2
MARK = f"sshop1 {NONCE} "
PROTOCOL = (Path(__file__).resolve().parents[2] / "docs" / "PROTOCOL.md").read_text()


def parse(head: bytes, rest: bytes = b"", operation_id: bytes = b"op-1") -> dict[str, object]:
    """A reader of docs/PROTOCOL.md section 3, written anew: what a guard makes of a request."""
    classes: dict[bytes, list[bytes]] = {b"a": [], b"c": [], b"e": [], b"d": []}
    secrets: dict[bytes, bytes] = {}
    plain, begun, secret, fresh = b"", b"", b"", False
    lines = (head + rest).split(b"\n")
    assert lines.pop() == b""
    for line in lines[1:]:
        letter, body = line[:1], line[2:]
        added = {b"l": body, b"i": operation_id, b"+": b"\n" + line[1:]}.get(letter, b"")
        if letter == b".":
            added = line[1:] if fresh else b"\n" + line[1:]
        if letter in classes:
            begun = letter
            classes[letter].append(body)
        elif letter in (b"h", b"x"):
            secret = body if letter == b"x" else b""
        elif letter == b"." and secret:
            secrets[secret] = secrets.get(secret, b"") + added
        elif letter in (b"l", b"i", b"+", b"."):
            classes[begun][-1] += added
        fresh = letter in (b"h", b"x")
        if letter in (b"a", b"d", b"e", b"s", b"u", b"z") or (letter in (b"l", b"i", b"h", b"+") and begun != b"c"):
            plain += line + b"\n"
    found: dict[str, object] = {letter.decode(): values for letter, values in classes.items()}
    return {**found, "secrets": secrets, "fingerprint": hashlib.sha256(plain).hexdigest()}


def value_of(element: commands.Element) -> bytes:
    return b"".join(
        piece.value.value if piece.value else b"op-1" if piece.kind == "id" else piece.text for piece in element
    )


@settings(max_examples=300)
@given(commands_of_any_kind())
@example(Command(argv=(text("\n"), text("\n\n"), text(""), text("a\n.b\n+c\ng\n?"))))
def test_any_bytes_of_a_command_survive(command: Command) -> None:
    request = Request("run", NONCE, operation_id="op-1", command=command, category="append_only")
    found = parse(protocol.head(request), protocol.rest(request))
    assert found["a"] == [value_of(element) for element in command.argv]
    assert found["c"] == [value_of(element) for element in command.condition]
    assert found["e"] == [name.encode() + b"=" + value_of(element) for name, element in command.env]
    assert found["d"] == ([] if command.cwd is None else [command.cwd])
    assert found["secrets"] == {name.encode(): secret.value for name, secret in command.secrets if secret}
    assert found["fingerprint"] == commands.fingerprint(command)


@settings(max_examples=100)
@given(commands_of_any_kind())
def test_go_counts_the_lines_before_it(command: Command) -> None:
    request = Request("run", NONCE, operation_id="op-1", command=command, category="append_only")
    parts = [protocol.head(request), protocol.rest(request)]
    if command.stdin is not None:
        parts.append(protocol.stdin_header(command.stdin.length))
    assert protocol.go(*parts) == b"go %d\n" % b"".join(parts).count(b"\n")


def test_every_line_of_a_full_head_is_one_that_the_document_names() -> None:
    section = PROTOCOL[PROTOCOL.index("\n## 3. ") : PROTOCOL.index("\n## 4. ")]
    known = {word[0] for word in re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)}
    command = Command(
        argv=(text("a\nb"), (Piece("id"), Piece("text", b"x"), Piece("hidden", name="n", value=Secret(b"v")))),
        cwd=b"/x", env=(("A", text("b")),), secrets=(("T", Secret(b"s")),), become_user="web",
        stdin=Stdin(1, "0" * 64), condition=(text("test"),),
    )  # fmt: skip
    request = Request(
        "run", NONCE, operation_id="op-1", attempt_id="att_1", clock="now", command=command, category="convergent",
        generation=2, ground="converges", claim_seen=(1, "rec_1"), store_id="st_1", witnesses=("a", "b"), new=True,
        weakest_grade="unsynced", timeout_s=1, inline_bytes=1, wait_s=1, record_id="rec_1", stream="out",
    )  # fmt: skip
    lines = protocol.head(request).split(b"\n")
    assert lines[0] == MARK.encode() + b"run"
    assert lines[-2:] == [b"?", b""]
    assert {chr(line[0]) for line in lines[1:-2]} <= known | {"."}
    assert b"s" not in [line[2:] for line in lines if line[:1] == b"."]


@pytest.mark.parametrize("verb", ["hello", "inquire", "fence", "cancel", "fetch", "ack"])
def test_a_question_carries_neither_command_nor_secret(verb: str) -> None:
    command = Command(argv=((Piece("hidden", name="n", value=Secret(b"v4lue")),),), secrets=(("T", Secret(b"s3cret")),))
    request = Request(verb, NONCE, operation_id="op-1", command=command)
    sent = protocol.head(request) + protocol.rest(request)
    assert b"v4lue" not in sent
    assert b"s3cret" not in sent
    assert b"F " + commands.fingerprint(command).encode() in sent


# -- reading ----

frames = st.sampled_from(
    [
        b"hello store=st_1 format=1 witness=-",
        b"claimed gen=1 rec=rec_1 sync=file_synced",
        b"no no_space claim=none op=absent gen=0 rec=- twin=- msg=no room k=v here",
        b"end",
        b"later unknown=1 more=2",
    ]
).map(lambda line: MARK.encode() + line + b"\n")
data = st.binary(max_size=300).map(
    lambda body: MARK.encode() + b"data stream=out offset=0 bytes=%d\n" % len(body) + body
)
noise = st.one_of(
    st.binary(max_size=60)
    .filter(lambda line: b"\n" not in line and not line.startswith(b"sshop1 "))
    .map(lambda x: x + b"\n"),
    st.just(b"sshop1 " + b"f" * 32 + b" end\n"),
    st.just(b"\n"),
    st.just(b"\0\xff\n"),
)


@settings(max_examples=200)
@given(st.lists(st.one_of(frames, data, noise), max_size=12), st.integers(1, 9))
def test_a_stream_is_read_the_same_whole_or_in_pieces(parts: list[bytes], size: int) -> None:
    stream = b"".join(parts)
    whole = Reader(NONCE)
    expected = whole.feed(stream)
    for step in (1, size):
        pieces = Reader(NONCE)
        found: list[Frame] = []
        for start in range(0, len(stream), step):
            found += pieces.feed(stream[start : start + step])
        assert found == expected
        assert pieces.noise == whole.noise
    assert len(expected) == sum(part.startswith(MARK.encode()) for part in parts)


def read(*lines: str) -> list[Frame]:
    return Reader(NONCE).feed("".join(MARK + line + "\n" for line in lines).encode())


def test_noise_is_kept_for_people_and_is_never_an_answer() -> None:
    reader = Reader(NONCE)
    assert reader.feed(b"Welcome!\nsshop1 " + b"0" * 32 + b" end\n") == []
    assert not reader.framed
    assert "Welcome!" in reader.noise
    assert [frame.word for frame in reader.feed(b"motd\n" + MARK.encode() + b"end\n")] == ["end"]
    assert reader.framed
    assert "motd" in reader.noise


def test_an_unfinished_line_is_noise_until_something_is_framed() -> None:
    reader = Reader(NONCE)
    reader.feed(b"This account is currently not available.")
    assert reader.noise == "This account is currently not available."


@pytest.mark.parametrize("step", [1 << 20, 4096, 65_537])
def test_a_line_of_noise_without_end_is_bounded_and_hides_no_frame(step: int) -> None:
    stream = b"x" * 200_000 + MARK.encode() + b"hello\n" + MARK.encode() + b"end\n"
    reader = Reader(NONCE)
    found = []
    for start in range(0, len(stream), step):
        found += reader.feed(stream[start : start + step])
        assert len(reader._buffer) <= max(step, 65_536)
    assert [frame.word for frame in found] == ["end"]
    assert len(reader.noise) <= 65_536


@pytest.mark.parametrize("step", [1 << 20, 4096])
def test_a_framed_line_without_end_is_refused(step: int) -> None:
    stream = MARK.encode() + b"no x msg=" + b"y" * 200_000 + b"\n"
    reader = Reader(NONCE)
    pieces = [stream[start : start + step] for start in range(0, len(stream), step)]
    with pytest.raises(errors.ProtocolError, match="longer"):
        [reader.feed(piece) for piece in pieces]


@pytest.mark.parametrize(
    "line", ["", " ", "NO x", "1 a=b", "data bytes=-1", "data bytes=x", "data bytes=9999999999999999"]
)
def test_a_framed_line_that_cannot_be_read_is_an_error(line: str) -> None:
    with pytest.raises(errors.ProtocolError):
        read(line)


def test_data_is_taken_by_its_length_whatever_it_holds() -> None:
    body = b"\0\n" + MARK.encode() + b"end\n\xff"
    stream = MARK.encode() + b"data stream=err offset=0 bytes=%d\n" % len(body) + body + MARK.encode() + b"end\n"
    first, last = Reader(NONCE).feed(stream)
    assert (first.word, first.data, first.get("stream"), last.word) == ("data", body, "err", "end")


def test_keys_that_nobody_knows_are_ignored_and_a_dash_is_nothing() -> None:
    (frame,) = read("result status=- gen=2 rec=rec_1 future=1 changed=0 msg=a b=c")
    assert (frame.get("status"), frame.integer("gen"), frame.get("absent"), frame.message) == (None, 2, None, "a b=c")
    assert protocol.result(frame).changed is False


def test_a_refusal_names_its_code() -> None:
    (frame,) = read("no unresolved_twin claim=none op=absent gen=0 rec=- twin=op-9 msg=operation op-9 stands")
    assert (frame.get("code"), frame.get("twin"), frame.message) == ("unresolved_twin", "op-9", "operation op-9 stands")


def test_a_first_line_is_taken_apart() -> None:
    (frame,) = read("hello store=st_1 format=1 machine=m boot=b grade=unsynced horizon=- op=exited gen=2 rec=r att=t "
                    "twin=op-9 twinop=exited witness=ok user=me")  # fmt: skip
    hello = protocol.hello(frame)
    assert (hello.store_id, hello.grade, hello.horizon, hello.generation, hello.twin) == (
        "st_1",
        "unsynced",
        None,
        2,
        "op-9",
    )
    with pytest.raises(errors.ProtocolError):
        protocol.hello(read("end")[0])


@pytest.mark.parametrize(
    "line", ["end", "result gen=1", "result status=1x", "result status=0 gen=x", "result status=0 out=-x"]
)
def test_a_result_that_lacks_what_it_needs_is_an_error(line: str) -> None:
    with pytest.raises(errors.ProtocolError):
        protocol.result(read(line)[0])
