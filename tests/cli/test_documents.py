"""What the documents say is what the program does, and the one JSON object has all its fields."""

import json
import re
from pathlib import Path

import pytest

from sshop import errors
from sshop.cli import document, exit_codes
from sshop.cli.options import COMMANDS, COMMON
from sshop.core import operation
from sshop.world import Answer
from tests.support.program import Program

ROOT = Path(__file__).resolve().parents[2]

# DESIGN section 7, word by word
FIELDS = """operation_id, state, health, category, effects, host, account, intent {kind, subject_ref, summary},
idempotency_key, session_id, owner, generation, replayed, attempt {attempt_id, retry_of_attempt_id, retry_reason,
retry_decision, dispatch_state, boundary, boundary_seen_by, attempt_budget_remaining, request_fingerprint,
prior_request_fingerprint, started_at, ended_at}, destination {host_key, store_id, authority_ref, cwd}, evidence {sync,
scope, retained_until}, record_id, effect_refs, exit_status, signal, timed_out, stdout, stderr, stdout_bytes,
stderr_bytes, stdout_sha256, truncated, result_contract, supersedes_operation_id, policy {digest, commit}, next
{action, command, why}, error {code, message}"""

EXITS = {
    0: "the operation succeeded",
    1: "the command ran and failed",
    2: "usage",
    3: "refused by policy",
    4: "an approval is needed",
    5: "outcome unknown",
    6: "still running",
    7: "key conflict",
    8: "not sent",
    9: "marker store",
    10: "duplicate effect confirmed",
    11: "unresolved twin",
    12: "another session owns",
    13: "fenced or cancelled",
    14: "the ledger cannot be used",
    70: "a fault of sshop itself",
}


def wanted() -> dict[str, set[str]]:
    flat = FIELDS.replace("\n", " ")
    nested = {name: set(re.split(r",\s*", inner)) for name, inner in re.findall(r"(\w+) \{([^}]*)\}", flat)}
    names = re.split(r",\s*", re.sub(r" \{[^}]*\}", "", flat))
    return {name: nested.get(name, set()) for name in names}


@pytest.mark.parametrize("words", [("see",), ("add",), ("settle",), ("wipe",)])
def test_the_object_of_run_has_every_field(program: Program, sshd, words):
    alias = sshd.accounts[sshd.user].alias
    done = program("run", alias, *words, f"path={sshd.home() / 'count'}", "--json")
    assert done.code == 0, done.text
    value = done.json
    assert done.stdout.count(b"\n") == 1
    assert set(value) == set(wanted()) | {"schema"} == set(document.FIELDS)
    assert value["schema"] == {"name": "sshop.operation", "version": 1}
    for name, inner in wanted().items():
        if inner and value[name] is not None:
            assert inner <= set(value[name]), name
    assert value["attempt"] is not None
    assert value["state"] == "succeeded"
    assert value["error"] is None
    shown = program("show", value["operation_id"], "--json").json
    assert set(shown) == {"schema", "operation", "attempts", "observations", "approvals", "events"}
    assert set(shown["operation"]) == set(document.FIELDS)
    assert {"sequence", "id", "at", "type", "body", "prev", "hash"} <= set(shown["events"][0])


def test_a_twin_that_the_host_knows_alone_has_no_command_to_run(program: Program, sshd):
    alias, counter = sshd.accounts[sshd.user].alias, sshd.counter()
    words = ("run", alias, "add", f"path={counter.path}", "then=sleep 5", "--json")
    assert program(*words, "--op", "op-1", "--wait", "0").code == 6
    done = program(*words, "--ledger", str(sshd.home() / "other.sqlite"))
    assert done.code == 11, done.text
    assert done.json["next"]["command"] is None
    assert "op-1" in done.json["next"]["why"]
    assert program("cancel", "op-1").code == 0


def test_an_error_before_there_is_an_operation_has_every_field_too(alone: Program):
    done = alone("run", "nowhere", "nope", "--json")
    assert list(done.json) == list(document.FIELDS)
    assert set(document.operation(Answer(None).fail("not_sent", "x", "y"))) == set(document.FIELDS)


def test_exit_codes_are_those_of_the_design():
    assert set(exit_codes.CODES.values()) == set(exit_codes.MEANING) == set(EXITS)
    for code, text in EXITS.items():
        assert text in exit_codes.MEANING[code]
    assert exit_codes.PRECEDENCE == (10, 5, 9, 7, 14, 70, 12, 11, 6, 4, 3, 13, 8, 1, 0)
    assert set(exit_codes.PRECEDENCE) | {2} == set(EXITS)
    assert set(exit_codes.REFUSALS) == {str(each) for each in operation.Refusal}
    assert set(exit_codes.REFUSALS.values()) <= set(exit_codes.CODES)


def all_below(base: type) -> list[type]:
    return [base, *(deeper for each in base.__subclasses__() for deeper in all_below(each))]


def test_every_error_has_an_exit_code_and_a_code_of_its_own():
    seen = {}
    for kind in all_below(errors.SshopError):
        assert kind.code not in seen, kind
        seen[kind.code] = kind
        if kind in (errors.Refused, errors.PolicyFileError):
            continue
        assert exit_codes.of_error(kind("x")) in EXITS
    assert exit_codes.of_error(ValueError()) == 70
    assert exit_codes.of_error(errors.LedgerFull()) == 14


@pytest.mark.parametrize(
    ("codes", "worst"),
    [
        ((0, 1), 1),
        ((0, 8), 8),
        ((5, 14, 0), 5),
        ((10, 5), 10),
        ((), 0),
        ((13, 1), 13),
        ((6, 12, 3), 12),
        ((70, 14), 14),
    ],
)
def test_of_many_the_worst_code_is_given(codes, worst):
    assert exit_codes.worst(codes) == worst


@pytest.mark.parametrize(
    ("code", "status", "given"),
    [(0, 0, 0), (1, 7, 7), (1, 255, 255), (0, 3, 3), (5, None, 205), (8, None, 208), (70, None, 255), (13, None, 213)],
)
def test_passthrough(code, status, given):
    assert exit_codes.passthrough(code, status) == given


def section(text: str, title: str) -> str:
    found = re.search(rf"^##+ `{re.escape(title)}`\n(.*?)(?=^##+ |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"docs/CLI.md has no section on `{title}`"
    return found[1]


def test_the_reference_names_every_command_option_and_default():
    text = (ROOT / "docs" / "CLI.md").read_text()
    titles = re.findall(r"^## `(.+)`$", text, re.MULTILINE)
    assert titles == [f"sshop {item.name}" for item in COMMANDS]
    for item in COMMANDS:
        body = section(text, f"sshop {item.name}")
        assert item.help in body
        for argument in item.arguments:
            assert argument.help in body, (item.name, argument.name)
        rows = re.findall(r"^\| `(--[a-z-]+)", body, re.MULTILINE)
        assert rows == [option.flags[0] for option in item.options], item.name
        for option in item.options:
            assert option.help.replace("|", "\\|") in body, (item.name, option.name)
    common = text.split("## Everywhere", 1)[1].split("\n## ", 1)[0]
    for option in COMMON:
        assert f"`{option.flags[0]}" in common
        assert option.help in common


@pytest.mark.parametrize("name", ["README.md", "docs/CLI.md"])
def test_the_documents_give_every_exit_code(name):
    text = (ROOT / name).read_text()
    rows = dict(re.findall(r"^\| (\d+) \| ([^|]+) \|$", text, re.MULTILINE))
    assert {int(code): meaning.strip() for code, meaning in rows.items()} == exit_codes.MEANING


def test_links_between_documents_lead_somewhere():
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("policies/*.md")]:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.relative_to(ROOT)}: {target}"


def test_documents_do_not_say_exactly_once_of_sshop():
    for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")]:
        for line in path.read_text().splitlines():
            if "exactly once" in line.lower():
                assert re.search(r"\bnot\b|\bno\b|never", line.lower()), f"{path.name}: {line}"


def test_a_json_object_is_the_only_thing_on_standard_output_in_every_state(program: Program, sshd):
    alias, path = sshd.accounts[sshd.user].alias, f"path={sshd.home() / 'count'}"
    running = f"then=while ! test -e {sshd.home()}/go; do sleep 0.05; done"
    calls = [
        (["run", alias, "add", path, "then=exit 3", "--op", "op-f"], 1),
        (["run", alias, "add", path, "--op", "op-f"], 7),
        (["run", alias, "add", path, running, "--op", "op-r", "--wait", "0"], 6),
        (["run", alias, "add", path, running], 11),
        (["reconcile", "op-r"], 6),
        (["replay", "op-r"], 0),
        (["unresolved"], 0),
        (["fence", "op-r"], 0),
        (["cancel", "op-f"], 0),
        (["ledger", "verify"], 0),
        (["ledger", "rebuild"], 0),
        (["policy", "lint"], None),
        (["ops"], 0),
        (["doctor", alias], 0),
        (["replay", "--all"], 0),
    ]
    for words, code in calls:
        if words[0] == "replay":
            (sshd.home() / "go").touch()
        done = program(*words, "--json")
        assert code is None or done.code == code, (words, done.text)
        assert done.stdout.endswith(b"\n"), words
        assert done.stdout.count(b"\n") == 1, words
        value = json.loads(done.stdout)
        assert value["schema"]["name"].startswith("sshop.")
        if done.code in (7, 11):
            command = {7: "sshop show op-f", 11: "sshop replay op-r"}[done.code]
            assert (value["operation_id"], value["next"]["command"]) == (command.split()[-1], command)
