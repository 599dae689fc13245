"""Values become elements of one command: none adds an element, meets a shell, or shows a secret."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sshop import errors
from sshop.catalogue.build import build
from sshop.core import command, entry
from sshop.core.command import Piece, Secret, Stdin

TEXT = r"""
commands:
  everything:
    summary: "writes {word} as {mode}"
    category: convergent
    kind: test.write
    subject: "thing:{word}"
    argv: [prog, --, "{word}", "a{number}b", "{mode}", "x{flag}y", "{path}",
           "{{literal}}", "op={operation_id}.", "{content.sha256}"]
    converged_when: [test, "{word}", "{operation_id}"]
    cwd: "/srv/{mode}"
    env: {WORD: "{word}", OP: "{operation_id}", TOKEN: "{token}", URL: "https://u:{token}@h/{mode}"}
    stdin: "{content}"
    become: true
    verify: {argv: [test, -e, "{path}", "{operation_id}"], exit: 1}
    params:
      word: {type: string, pattern: "[^\\x00]*"}
      number: {type: integer, minimum: -5, maximum: 70000, default: 1, allow_dash: true}
      mode: {type: enum, values: [fast, -slow], default: fast}
      flag: {type: boolean, default: false, when_true: "yes", when_false: ""}
      path: {type: path, root: /srv, default: /srv/x}
      token: {type: secret}
      content: {type: file}
  with-secret-input:
    summary: s
    category: append_only
    argv: [chpasswd]
    stdin: "{name}:{password}\n"
    params:
      name: {type: string, pattern: "[a-z]+"}
      password: {type: secret, default: "env:PW"}
  key-input:
    summary: s
    category: append_only
    argv: [cat]
    stdin: "{key}"
    params: {key: {type: secret, multiline: true}}
  tight:
    summary: s
    category: read_only
    argv: [prog, "{name}", "{number}", "{mode}", "{flag}", "{path}", "{under}"]
    params:
      name: {type: string, pattern: "[a-z]+", max_length: 8, default: a}
      number: {type: integer, minimum: 2, maximum: 10, default: 2}
      mode: {type: enum, values: [fast, slow], default: fast}
      flag: {type: boolean, default: true}
      path: {type: path, default: /a}
      under: {type: path, root: /srv/data, default: /srv/data/x}
  input-of-values:
    summary: s
    category: append_only
    argv: [cat]
    stdin: "{a}{b}"
    params: {a: {type: string, pattern: "[a-z]*"}, b: {type: string, pattern: "[a-z]*"}}
"""
ENTRIES = build({"catalogue/a.yaml": TEXT.encode()}).entries
EVERYTHING = ENTRIES["everything"]
CONTENT = Stdin(4, hashlib.sha256(b"data").hexdigest(), Secret(b"data"), "/tmp/f")
GIVEN = {"word": "w", "token": "env:T", "content": "f"}


def render(entry_name="everything", values=None, secret=b"S3CR3T", **more):
    return entry.render(ENTRIES[entry_name], {**(values or {}), **more}, lambda _: secret, lambda _: CONTENT).command


def plain(element):
    return b"".join(piece.text if piece.kind == "text" else b"<%s>" % piece.kind.encode() for piece in element)


def test_every_kind_of_value_finds_its_place():
    made = render(values=GIVEN, number="-5", mode="-slow", flag="true")
    assert [plain(element) for element in made.argv] == [
        b"prog",
        b"--",
        b"w",
        b"a-5b",
        b"-slow",
        b"xyesy",
        b"/srv/x",
        b"{literal}",
        b"op=<id>.",
        CONTENT.sha256.encode(),
    ]
    assert [plain(element) for element in made.condition] == [b"test", b"w", b"<id>"]
    assert made.cwd == b"/srv/-slow"
    assert {name: plain(element) for name, element in made.env} == {"WORD": b"w", "OP": b"<id>"}
    assert {name: secret.value for name, secret in made.secrets} == {
        "TOKEN": b"S3CR3T",
        "URL": b"https://u:S3CR3T@h/-slow",
    }
    assert made.stdin == CONTENT
    assert made.become_user == "root"


def test_an_empty_value_keeps_its_element():
    assert [plain(element) for element in render(values=GIVEN, word="").argv][2:6] == [b"", b"a1b", b"fast", b"xy"]


def test_what_it_means_is_told_without_secrets():
    assert entry.describe(EVERYTHING, GIVEN) == entry.Description("test.write", "thing:w", "writes w as fast")


def test_verify_has_no_secret_and_no_input():
    made = entry.render(EVERYTHING, GIVEN, lambda _: b"S3CR3T", lambda _: CONTENT).verify
    assert [plain(element) for element in made.argv] == [b"test", b"-e", b"/srv/x", b"<id>"]
    assert (made.secrets, made.stdin, made.become_user) == ((), None, "root")
    assert entry.render(ENTRIES["tight"], {}).verify is None


def test_a_file_is_read_once_for_command_and_verify():
    read = iter((CONTENT,))
    both = entry.render(EVERYTHING, GIVEN, lambda _: b"S3CR3T", lambda _: next(read))
    assert next(read, None) is None
    assert (both.command.stdin, both.verify is None) == (CONTENT, False)


def test_a_secret_stands_in_no_frame_no_json_and_no_display():
    made = render(values=GIVEN)
    kept = command.plain_frames(made) + repr(made).encode() + command.display(made).encode()
    kept += repr(command.to_json(made)).encode() + command.wire_frames(made)
    assert b"S3CR3T" not in kept
    assert b"S3CR3T" in command.secret_frames(made)


def test_input_that_holds_a_secret_has_no_plain_digest():
    made = render("with-secret-input", name="bob")
    assert (made.stdin.sha256, made.stdin.data.value, made.stdin.length) == (None, b"bob:S3CR3T\n", 11)
    assert b"S3CR3T" not in command.plain_frames(made) + repr(made).encode()


@pytest.mark.parametrize("secret", [b"pw\nroot:x", b"pw\r"])
def test_a_secret_of_two_lines_cannot_smuggle_one_in(secret):
    with pytest.raises(errors.UsageError, match="more than one line") as caught:
        render("with-secret-input", secret=secret, name="bob")
    assert "pw" not in str(caught.value)
    assert render("key-input", secret=b"a\nb", key="file:k").stdin.data.value == b"a\nb"


def test_one_request_has_one_fingerprint_however_its_values_are_cut():
    one, other = render("input-of-values", a="xy", b=""), render("input-of-values", a="x", b="y")
    assert command.fingerprint(one) == command.fingerprint(other)


REFUSED = [
    ("unknown", {"nme": "a"}, "tight has no parameter 'nme'", "did you mean 'name'? parameters of tight: name:"),
    ("pattern", {"name": "A"}, r"must match [a-z]+", "name: text matching"),
    ("pattern_newline", {"name": "a\n"}, "must match", None),
    ("pattern_part", {"name": "a;b"}, "must match", None),
    ("long", {"name": "a" * 9}, "9 characters long, more than 8", None),
    ("nul", {"name": "a\0"}, "holds a NUL byte", None),
    ("dash", {"name": "-a"}, "begins with '-'", None),
    ("integer_text", {"number": "two"}, "must be a decimal integer", "number: integer 2..10"),
    ("integer_zero", {"number": "03"}, "must be a decimal integer", None),
    ("integer_plus", {"number": "+3"}, "must be a decimal integer", None),
    ("integer_blank", {"number": " 3"}, "must be a decimal integer", None),
    ("integer_arabic", {"number": "٣"}, "must be a decimal integer", None),
    ("integer_underscore", {"number": "1_0"}, "must be a decimal integer", None),
    ("integer_exponent", {"number": "1e1"}, "must be a decimal integer", None),
    ("integer_low", {"number": "1"}, "must be at least 2", None),
    ("integer_high", {"number": "11"}, "must be at most 10", None),
    ("integer_huge", {"number": "9" * 400}, "must be a decimal integer", None),
    ("integer_negative", {"number": "-3"}, "begins with '-'", None),
    ("enum", {"mode": "Fast"}, "must be one of fast slow", None),
    ("boolean", {"flag": "yes"}, "must be true or false", None),
    ("path_relative", {"path": "a/b"}, "must be an absolute path", None),
    ("path_home", {"path": "~/b"}, "must be an absolute path", None),
    ("path_up", {"path": "/a/../b"}, "must not hold", None),
    ("path_up_last", {"path": "/a/.."}, "must not hold", None),
    ("path_here", {"path": "/a/./b"}, "must not hold", None),
    ("path_double", {"path": "//a"}, "must not hold", None),
    ("path_double_inside", {"path": "/a//b"}, "must not hold", None),
    ("path_slash_last", {"path": "/a/"}, "end in a slash", None),
    ("path_newline", {"path": "/a\n/b"}, "control characters", None),
    ("path_escape", {"path": "/a\x1b"}, "control characters", None),
    ("path_root", {"under": "/srv/database"}, "must be under /srv/data", "absolute path under /srv/data"),
    ("path_root_up", {"under": "/srv/data/../x"}, "must not hold", None),
    ("path_root_itself", {"under": "/srv/data"}, "must be under", None),
]


@pytest.mark.parametrize(("values", "message", "hint"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_value_that_is_not_of_its_type_is_refused_and_the_type_told(values, message, hint):
    with pytest.raises(errors.UsageError) as caught:
        entry.render(ENTRIES["tight"], values)
    assert message in str(caught.value)
    assert hint is None or hint in caught.value.hint


def test_what_is_missing_is_listed_with_what_exists():
    with pytest.raises(errors.UsageError, match="everything needs word, token, content") as caught:
        entry.render(EVERYTHING, {})
    assert "token: secret, by reference" in caught.value.hint


def test_a_parameter_given_twice_and_a_word_without_a_value_are_refused():
    tight = ENTRIES["tight"]
    assert entry.parse_values(tight, ["name=a=b", "mode="]) == {"name": "a=b", "mode": ""}
    with pytest.raises(errors.UsageError, match="'name' is given twice"):
        entry.parse_values(tight, ["name=a", "name=a"])
    with pytest.raises(errors.UsageError, match="not key=value: 'name'"):
        entry.parse_values(tight, ["name"])


def test_a_long_value_is_shown_short():
    with pytest.raises(errors.UsageError) as caught:
        entry.render(ENTRIES["tight"], {"path": "x" * 3000})
    assert len(str(caught.value)) < 200


def test_ten_megabytes_are_refused():
    with pytest.raises(errors.UsageError, match="characters long"):
        render(values=GIVEN, word="x" * 10_000_000)


def test_without_readers_a_secret_is_not_at_hand():
    with pytest.raises(errors.InputUnavailable):
        entry.render(EVERYTHING, GIVEN)


# every text but NUL, lone bytes as argv brings them (surrogates) included
ANY = st.text(st.characters(exclude_characters="\0", exclude_categories=[]), max_size=60).map(
    lambda text: "".join(c if not 0xD800 <= ord(c) < 0xE000 else chr(0xDC80 + ord(c) % 128) for c in text)
)


@given(ANY)
def test_no_value_changes_the_shape_of_argv_or_leaves_its_element(value):
    given_values = {**GIVEN, "word": value}
    if value.startswith("-"):
        with pytest.raises(errors.UsageError):
            render(values=given_values)
        return
    made, other = render(values=given_values), render(values=GIVEN)
    assert len(made.argv) == len(other.argv)
    assert made.argv[2] == (Piece("text", value.encode("utf-8", "surrogateescape")),)
    assert made.argv[:2] + made.argv[3:] == other.argv[:2] + other.argv[3:]
    assert (made.cwd, made.secrets, made.stdin, made.become_user) == (
        other.cwd,
        other.secrets,
        other.stdin,
        other.become_user,
    )
    lines = command.plain_frames(made).split(b"\n")
    assert sum(line.startswith(b"a ") for line in lines) == len(other.argv)
    assert command.from_json(command.to_json(made)).argv == made.argv


@given(ANY, st.sampled_from(["name", "number", "mode", "flag", "path", "under"]))
def test_a_tight_value_is_taken_as_it_is_or_refused(value, name):
    tight = ENTRIES["tight"]
    try:
        made = entry.render(tight, {name: value}).command
    except errors.UsageError:
        return
    place = list(tight.params).index(name) + 1
    assert plain(made.argv[place]).decode("utf-8", "surrogateescape") == value
    assert len(made.argv) == 7


@given(ANY, ANY)
def test_a_secret_shows_in_no_error(secret, word):
    value = ("S3CR3T" + secret).encode("utf-8", "surrogateescape")
    try:
        made = render(values={**GIVEN, "word": word}, secret=value)
    except errors.SshopError as error:
        made, told = None, str(error) + str(error.hint)
    else:
        told = ""
    assert "S3CR3T" not in told
    if made is None:
        return
    assert value not in command.plain_frames(made)
    assert "S3CR3T" not in repr(made) + command.display(made)


@given(st.text())
def test_a_template_is_its_text_again(text):
    from sshop.core.template import parse_template, show_template

    try:
        parts = parse_template(text)
    except errors.UsageError:
        return
    assert parse_template(show_template(parts)) == parts


@given(st.text())
def test_literal_text_stays_literal_when_its_braces_are_doubled(text):
    from sshop.core.template import parse_template

    parts = parse_template(text.replace("{", "{{").replace("}", "}}"))
    assert parts == ((("text", text),) if text else ())
