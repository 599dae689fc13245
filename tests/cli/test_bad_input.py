"""Bad input and bad surroundings: a clear error, its exit code, nothing lost, nothing run, no traceback."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.program import Program, write_policies
from tests.support.tools import require_root

ROWS = [
    # what is wrong, words, exit code, text of the message
    ("unknown command", ["run", "nowhere", "nope"], 2, "nope"),
    ("no command", ["run", "nowhere"], 2, "no command is given"),
    ("an empty raw command", ["run", "nowhere", "--"], 2, "empty"),
    ("two kinds of command", ["run", "nowhere", "see", "path=/x", "--shell", "true"], 2, "exclude each other"),
    ("unknown parameter", ["run", "nowhere", "see", "path=/x", "nope=1"], 2, "nope"),
    ("parameter given twice", ["run", "nowhere", "see", "path=/x", "path=/y"], 2, "path"),
    ("missing parameter", ["run", "nowhere", "see"], 2, "path"),
    ("no key=value", ["run", "nowhere", "see", "path"], 2, "path"),
    ("a relative path", ["run", "nowhere", "see", "path=x"], 2, "path"),
    ("a bad integer", ["run", "nowhere", "add-late", "path=/x", "seconds=many"], 2, "seconds"),
    ("an integer out of range", ["run", "nowhere", "add-late", "path=/x", "seconds=61"], 2, "seconds"),
    ("a bad pattern", ["run", "nowhere", "named", "name=A b"], 2, "name"),
    ("a value that begins with -", ["run", "nowhere", "named", "name=-rf"], 2, "-"),
    ("a bad host", ["run", "a b", "see", "path=/x"], 2, "not a host"),
    ("a host that is an option", ["run", "--", "true"], 2, "host"),
    ("a bad port", ["run", "nowhere:0", "see", "path=/x"], 2, "port"),
    ("a negative wait", ["run", "nowhere", "see", "path=/x", "--wait", "-1"], 2, "--wait"),
    ("dead after no time", ["run", "nowhere", "see", "path=/x", "--dead-after", "0"], 2, "--dead-after"),
    ("dead after no number", ["run", "nowhere", "see", "path=/x", "--dead-after", "nan"], 2, "--dead-after"),
    ("a wait without an end", ["run", "nowhere", "see", "path=/x", "--wait", "inf"], 2, "--wait"),
    ("a wait that is no number", ["reconcile", "op-1", "--wait", "nan"], 2, "--wait"),
    ("no such file for standard input", ["run", "nowhere", "--stdin", "/nonexistent", "--", "cat"], 8, "/nonexistent"),
    ("a folder for standard input", ["run", "nowhere", "--stdin", "/", "--", "cat"], 2, "folder"),
    (
        "standard input for an entry that takes none",
        ["run", "nowhere", "see", "path=/x", "--stdin", "/dev/null"],
        2,
        "",
    ),
    ("no such policies", ["run", "nowhere", "see", "path=/x", "--policies", "/nonexistent"], 2, "/nonexistent"),
    ("no such operation", ["show", "op-none"], 2, "op-none"),
    ("no such operation to replay", ["replay", "op-none"], 2, "op-none"),
    ("replay of nothing", ["replay"], 2, "--all"),
    ("replay of one and all", ["replay", "op-1", "--all"], 2, "--all"),
    ("a head that is none", ["ledger", "verify", "--head", "x"], 2, "head"),
    ("a head with a hash that is none", ["ledger", "verify", "--head", "3:abc"], 2, "head"),
    ("a raw command without --", ["run", "nowhere", "df", "-h"], 2, "a raw command and its options stand after --"),
    ("a raw command of one word without --", ["run", "nowhere", "df"], 2, "a raw command stands after --"),
    ("a number that is none", ["ledger", "fill", "x"], 2, "number"),
    ("a limit of nothing", ["ops", "--limit", "0"], 2, "--limit"),
    ("a page before no operation", ["ops", "--before", "../x"], 2, ""),
    ("an unknown command of sshop", ["nope"], 2, "nope"),
    ("an unknown command of the ledger", ["ledger", "nope"], 2, "nope"),
    ("an unknown option", ["ops", "--nope"], 2, "--nope"),
    ("nobody listens", ["run", "nowhere", "see", "path=/x"], 8, "127.0.0.1"),
    ("a name that is no host", ["run", "no-such-host.invalid", "see", "path=/x"], 8, "no-such-host.invalid"),
    ("a ledger that is not built yet", ["ops", "--ledger", "postgresql://h/d"], 2, "postgresql"),
]

CATALOGUE = """\
commands:
  named:
    summary: Something about {name}
    category: read_only
    argv: [id, "{name}"]
    params: {name: {type: string, pattern: "[a-z-]{1,8}"}}
"""


@pytest.fixture
def quick(alone: Program) -> Program:
    """One try, so that a host that is not there takes no time."""
    (alone.policies / "policy.yaml").write_text("not_sent_tries: 1\n")
    (alone.policies / "catalogue" / "named.yaml").write_text(CATALOGUE)
    return alone


def judge(done, code: int, text: str) -> None:
    assert done.code == code, done.text
    assert "Traceback" not in done.text
    assert done.text.startswith("sshop: ")
    assert text.lower() in done.text.lower()
    assert all(line.startswith(("sshop: ", "hint: ", "  ")) for line in done.text.splitlines())


@pytest.mark.parametrize(("words", "code", "text"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_bad_input_is_one_clear_error_and_one_object(quick: Program, words, code, text):
    done = quick(*words)
    judge(done, code, text)
    assert done.stdout == b""
    words = [words[0], "--json", *words[1:]] if words[:1] != ["ledger"] else [*words, "--json"]
    done = quick(*words)
    judge(done, code, text)
    value = json.loads(done.stdout)
    assert value["error"]["code"]
    assert value["error"]["message"]
    assert value["schema"]["version"]
    assert set(value["next"]) == {"action", "command", "why"}


def inside(program: Program, *words: str):
    """A call by the program's own `main`, with words that no system would let through."""
    script = "import sys, json; from sshop.cli.entry import main; sys.exit(main(json.load(sys.stdin)))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=program.environ,
        input=json.dumps(words).encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr.decode()


@pytest.mark.parametrize(
    "words",
    [
        ["run", "nowhere", "--", "echo", "a\0b"],
        ["run", "nowhere", "see", "path=/a\0b"],
        ["run", "nowhere", "--shell", "echo \0"],
        ["run", "nowhere", "--", "echo", "x" * 10_000_000],
        ["run", "nowhere", "add", "path=/x", "then=" + "x" * 10_000_000],
        ["run", "nowhere", "--op", "x" * 10_000_000, "--", "true"],
        ["run", "nowhere", "--op", "a\0b", "--", "true"],
        ["run", "x" * 10_000_000, "--", "true"],
    ],
    ids=lambda words: " ".join(words)[:40].replace("\0", "NUL"),
)
def test_a_nul_byte_and_ten_megabytes_are_usage(quick: Program, words):
    code, out, err = inside(quick, *words)
    assert code == 2, err[:2000]
    assert err.startswith("sshop: ")
    assert len(err) < 5000
    assert out == b""
    assert b'operations": []' in quick("ops", "--json").stdout


NASTY = [
    "x",
    "-",
    "a-",
    "token-",
    "password=",
    "mysql ",
    "a:b@",
    "://",
    "'",
    '"',
    "\\",
    "$(",
    "`",
    "(",
    "{",
    "\n",
    "x\n;",
    "é",
]


@pytest.mark.parametrize("piece", NASTY, ids=repr)
def test_an_argument_as_long_as_one_may_be_is_judged_at_once(quick: Program, piece):
    long = (piece * 131_000)[: 131_000 // len(piece.encode())]
    started = time.monotonic()
    for words in (
        ["--", "echo", long],
        ["--shell", f": {long[:100_000]}"],
        ["add", "path=/x", "then=" + long[:120_000]],
    ):
        code, _, err = inside(quick, "run", "nowhere", *words)
        assert code in (2, 3, 8), err[:2000]
        assert "Traceback" not in err
        assert len(err) < 5000
    assert time.monotonic() - started < 30


# -- policies ----------------------------------------------------------------------------------------------------------


def test_an_unreadable_policy_is_named_with_its_line(quick: Program):
    (quick.policies / "catalogue" / "bad.yaml").write_text("commands:\n  x: {category: odd, argv: [true]}\n")
    done = quick("run", "nowhere", "see", "path=/x")
    judge(done, 2, "bad.yaml:2:")
    # what only reads the ledger still works
    assert quick("ops").code == 0


def test_policies_that_may_not_be_read_are_usage(quick: Program):
    victim = quick.policies / "catalogue" / "named.yaml"
    victim.unlink()
    victim.symlink_to("/nonexistent")
    judge(quick("run", "nowhere", "see", "path=/x"), 2, "named.yaml")


# -- ledgers -----------------------------------------------------------------------------------------------------------


def files_of(ledger: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in ledger.parent.glob(ledger.name + "*") if path.is_file()}


RUN = ["run", "nowhere", "add", "path=/x"]


def test_a_ledger_that_stays_locked_is_14(quick: Program):
    assert quick("ops").code == 0
    holder = sqlite3.connect(quick.ledger, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        done = quick(*RUN, "--json", timeout=120)
    finally:
        holder.execute("ROLLBACK")
        holder.close()
    judge(done, 14, "locked")
    assert done.json["error"]["code"] == "ledger.locked"
    assert quick("ops", "--json").json["operations"] == []


def test_a_corrupt_ledger_is_14_and_is_left_as_it_is(quick: Program):
    quick("ledger", "fill", "200")
    content = bytearray(quick.ledger.read_bytes())
    content[: len(content) // 2] = os.urandom(len(content) // 2)
    quick.ledger.write_bytes(content)
    for words in (RUN, ["ops"], ["show", "op-1"], ["ledger", "verify"], ["replay", "op-1"]):
        judge(quick(*words), 14, "")
    assert quick.ledger.read_bytes() == bytes(content)


def test_a_file_that_is_no_ledger_is_14_and_is_left_as_it_is(quick: Program):
    quick.ledger.write_text("dear diary\n" * 100)
    judge(quick(*RUN), 14, "")
    assert quick.ledger.read_text() == "dear diary\n" * 100


def test_a_foreign_database_is_14_and_is_left_as_it_is(quick: Program):
    with sqlite3.connect(quick.ledger) as other:
        other.execute("CREATE TABLE recipes (name TEXT)")
    other.close()
    before = quick.ledger.read_bytes()
    judge(quick(*RUN), 14, "")
    assert quick.ledger.read_bytes() == before


def test_a_newer_ledger_is_refused_with_14(quick: Program):
    assert quick("ops").code == 0
    with sqlite3.connect(quick.ledger) as other:
        version = other.execute("PRAGMA user_version").fetchone()[0]
        other.execute(f"PRAGMA user_version = {version + 1}")
    other.close()
    done = quick(*RUN, "--json")
    judge(done, 14, "newer")
    assert done.json["error"]["code"] == "ledger.newer"


def test_a_ledger_in_a_folder_that_is_not_there_is_14(quick: Program):
    judge(quick(*RUN, "--ledger", "/proc/nonexistent/ledger.sqlite"), 14, "/proc/nonexistent")


def test_a_folder_in_the_place_of_the_ledger_is_14(quick: Program, tmp_path):
    judge(quick(*RUN, "--ledger", str(tmp_path)), 14, str(tmp_path))


def test_without_a_home_there_is_no_place_for_a_ledger(quick: Program):
    environ = {name: value for name, value in quick.environ.items() if name not in ("HOME", "SSHOP_LEDGER")}
    argv = [sys.executable, "-m", "sshop.cli.entry", "ops"]
    done = subprocess.run(argv, env=environ, capture_output=True, check=False)
    assert done.returncode == 14
    assert b"HOME" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_read_only_ledger_is_14_for_who_writes_and_good_for_who_reads(quick: Program, tmp_path):
    require_root()
    folder = tmp_path / "ro"
    folder.mkdir()
    ledger = folder / "ledger.sqlite"
    assert quick("ledger", "fill", "100", "--ledger", str(ledger)).code == 0
    script = f"""
mount --bind {folder} {folder} && mount -o remount,ro,bind {folder} || exit 99
{sys.executable} -m sshop.cli.entry run nowhere add path=/x --json --ledger {ledger}; echo "run $?"
{sys.executable} -m sshop.cli.entry ops --ledger {ledger} >/dev/null; echo "ops $?"
"""
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], env=quick.environ, capture_output=True, text=True, check=False
    )
    if done.returncode == 99:
        pytest.skip("no mount here")
    assert "Traceback" not in done.stderr
    assert "run 14" in done.stdout, done.stderr
    assert json.loads(done.stdout.splitlines()[0])["error"]["code"].startswith("ledger")


def test_a_full_disk_under_the_ledger_is_14_and_nothing_is_lost(quick: Program, tmp_path):
    require_root()
    folder = tmp_path / "tiny"
    folder.mkdir()
    script = f"""
mount -t tmpfs -o size=1m tmpfs {folder} || exit 99
S="{sys.executable} -m sshop.cli.entry"
$S ledger fill 100 --ledger {folder}/l.sqlite
cat /dev/zero >{folder}/fill 2>/dev/null
for i in 1 2 3 4 5 6 7 8 9 10; do
	$S run nowhere add path=/x/$i --ledger {folder}/l.sqlite >/dev/null; code=$?; echo "run $code"
	[ $code = 14 ] && break
done
rm {folder}/fill
$S ledger verify --ledger {folder}/l.sqlite; echo "verify $?"
"""
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], env=quick.environ, capture_output=True, text=True, check=False
    )
    if done.returncode == 99:
        pytest.skip("no mount here")
    assert "Traceback" not in done.stderr
    assert "run 14" in done.stdout, done.stdout + done.stderr
    assert "verify 0" in done.stdout, done.stdout + done.stderr


# -- streams -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_is_no_fault(quick: Program, closed):
    for words, code in (("ops", 0), ("ops --json", 0), ("run nowhere see path=/x", 8), ("--help", 0), ("nope", 2)):
        line = f"{sys.executable} -m sshop.cli.entry {words} {closed}"
        done = subprocess.run(["sh", "-c", line], env=quick.environ, capture_output=True, text=True, check=False)
        assert done.returncode == code, (words, done.stderr)
        assert "Traceback" not in done.stderr
    assert not list(Path(quick.environ["HOME"]).glob("*fault*"))


def test_a_reader_that_goes_away_is_no_fault(quick: Program):
    quick("ledger", "fill", "3000")
    line = f"{sys.executable} -m sshop.cli.entry ops --limit 1000 | head -n 1"
    done = subprocess.run(["sh", "-c", line], env=quick.environ, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1


def test_messages_can_be_json_too(quick: Program):
    for words in (["nope"], ["run", "nowhere", "nope"], ["show", "op-1"]):
        done = quick(*words, "--log-format", "json")
        lines = [json.loads(line) for line in done.text.splitlines()]
        assert lines[0]["message"]
        assert lines[0]["code"].startswith("usage")


def test_exit_passthrough_moves_the_codes_of_errors_too(quick: Program):
    assert quick("run", "nowhere", "nope", "--exit-passthrough").code == 202
    assert quick("run", "nowhere", "see", "path=/x", "--exit-passthrough").code == 208
    assert (
        quick("run", "nowhere", "see", "path=/x", "--ledger", "/proc/nonexistent/x", "--exit-passthrough").code == 214
    )


def test_a_session_name_that_is_no_id_is_usage(quick: Program):
    judge(quick.with_environ(SSHOP_SESSION="../x")(*RUN), 2, "SSHOP_SESSION")
    judge(quick.with_environ(SSHOP_AGENT="a\nb")(*RUN), 2, "SSHOP_AGENT")


def test_a_cache_that_cannot_be_written_is_no_error(quick: Program):
    home = Path(quick.environ["HOME"])
    shutil.rmtree(home / ".cache", ignore_errors=True)
    (home / ".cache").write_text("a file")
    assert quick("policy", "lint").code in (0, 1)
    judge(quick("run", "nowhere", "see", "path=/x"), 8, "")


def test_a_policy_folder_of_many_faults_names_them_all(quick: Program, tmp_path):
    folder = write_policies(tmp_path / "many", "commands:\n  a: {category: odd}\n  b: {argv: []}\n")
    done = quick("policy", "lint", "--policies", str(folder))
    judge(done, 2, "test.yaml:2:")
    assert "more" in done.text
