"""What a request is, by which rule, and whether it may run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sshop import errors
from sshop.catalogue.build import build
from sshop.core import command
from sshop.core.policy import Policy, Request, evaluate, find_entry, render_raw
from sshop.core.recovery import effective_category
from sshop.core.rules import SEVERITY, Rule, sort

CATALOGUE = """
commands:
  look: {summary: s, category: read_only, argv: [ls], budget: 7, timeout_s: 9, max_output: 5}
  pay: {summary: s, category: convergent, effects: [financial], argv: [pay], converged_when: [paid]}
  tell: {summary: s, category: read_only, effects: [notification], argv: [tell]}
  drop: {summary: s, category: destructive, argv: [drop], approval: required}
  wipe: {summary: s, category: destructive, effects: [financial], argv: [wipe]}
"""
RULES = """
rules:
  - {argv: [ls], category: read_only, reason: lists, rest: operands, flags: la, options: [--full],
     examples: {match: [ls], not_match: [ls --x]}}
  - {argv: [ls, /secret], category: destructive, reason: never, rest: any, examples: {match: [ls /secret]}}
  - {argv: [note], category: append_only, reason: notes, rest: any, examples: {match: [note]}}
"""


def policy(said: str = "") -> Policy:
    return build({"catalogue/a.yaml": CATALOGUE.encode(), "rules.yaml": RULES.encode(), "policy.yaml": said.encode()})


def raw(*argv: str, said: str = ""):
    return evaluate(policy(said), Request(argv=argv))


def test_an_entry_decides_by_what_it_says():
    decision = evaluate(policy(), Request(name="look"))
    assert (decision.outcome, decision.category, decision.budget, decision.timeout_s, decision.max_output) == (
        "allowed",
        "read_only",
        7,
        9,
        5,
    )
    assert decision.rule == "catalogue/a.yaml:3"
    assert decision.refusal() is None


@pytest.mark.parametrize(
    ("name", "row"), [("pay", "append_only"), ("tell", "append_only"), ("wipe", "destructive"), ("look", "read_only")]
)
def test_money_and_messages_are_never_repeated_by_rule(name, row):
    assert evaluate(policy(), Request(name=name)).recovers_as == row


def test_a_row_is_never_milder_than_the_category():
    for category in SEVERITY:
        for effects in ((), ("financial",), ("notification",), ("data_loss",)):
            assert SEVERITY[effective_category(category, effects)] >= SEVERITY[category]


def test_an_entry_that_needs_an_approval_is_refused_until_there_are_approvals():
    decision = evaluate(policy(), Request(name="drop"))
    refusal = decision.refusal()
    assert decision.outcome == "approval_required"
    assert isinstance(refusal, errors.Refused)
    assert (refusal.refusal, refusal.code) == ("approval_required", "approval_required")


def test_a_category_may_need_approvals_raw_commands_included():
    said = "approval_required: [destructive]"
    assert raw("rm", "x", said=said).refusal().refusal == "approval_required"
    assert evaluate(policy(said), Request(shell="ls")).outcome == "approval_required"
    assert evaluate(policy(said), Request(name="wipe")).outcome == "approval_required"
    assert raw("ls", said=said).outcome == "allowed"


def test_raw_commands_may_be_forbidden():
    assert raw("ls", said="raw: {argv: refused}").refusal().refusal == "policy_forbids"
    assert evaluate(policy("raw: {argv: refused}"), Request(shell="ls")).outcome == "allowed"
    assert evaluate(policy("raw: {shell: refused}"), Request(shell="ls")).refusal().refusal == "policy_forbids"


@pytest.mark.parametrize(
    ("argv", "category"),
    [
        (("ls",), "read_only"),
        (("ls", "-la", "/etc"), "read_only"),
        (("ls", "--full", "--", "-x", "--y"), "read_only"),
        (("ls", "-"), "read_only"),
        (("ls", "--ful"), "destructive"),
        (("ls", "-laZ"), "destructive"),
        (("/bin/ls",), "destructive"),
        (("LS",), "destructive"),
        (("ls ",), "destructive"),
        (("ls; COUNT",), "destructive"),
        (("ls\nCOUNT",), "destructive"),
        (("ls\r",), "destructive"),
        (("sudo", "ls"), "destructive"),
        (("env", "ls"), "destructive"),
        (("", "ls"), "destructive"),
        (("note", "-x", "y"), "append_only"),
        (("rm", "x"), "destructive"),
    ],
)
def test_only_exact_words_are_known(argv, category):
    assert raw(*argv).category == category


def test_the_strictest_rule_that_matches_counts():
    decision = raw("ls", "/secret")
    assert (decision.category, decision.reason, decision.rule) == ("destructive", "never", "rules.yaml:5")


def test_no_rule_is_told_as_such():
    assert (raw("rm").rule, raw("rm").reason) == (None, "no rule knows it")


# CASES 089: as words of an argv they reach no shell, and as shell text they are destructive
@pytest.mark.parametrize(
    "text",
    [
        "ls; COUNT",
        "ls && COUNT",
        "ls | sh",
        "ls\nCOUNT",
        "ls $(COUNT)",
        "ls `COUNT`",
        "ls > f",
        "ls & COUNT",
        "ls\rCOUNT",
        "ls <(COUNT)",
        "ls",
    ],
)
def test_shell_text_is_destructive_whatever_it_says(text):
    assert evaluate(policy(), Request(shell=text)).category == "destructive"
    assert evaluate(policy(), Request(argv=(text, "x"))).category == "destructive" or text == "ls"
    made = render_raw(policy(), Request(shell=text))
    assert [b"".join(p.text for p in element) for element in made.argv] == [b"bash", b"-c", text.encode()]


WORDS = st.lists(
    st.sampled_from(["ls", "-l", "-la", "--full", "--", "x", "-", "note", "/secret", "--x", "-z", ""]), max_size=6
)


@given(WORDS)
def test_a_further_rule_never_makes_a_matched_command_milder(words):
    rules = policy().rules
    before, _ = sort(rules, words)
    after, _ = sort(
        [*rules, Rule(("ls",), "append_only", "r", rest="any"), Rule(("note",), "destructive", "r", rest="any")], words
    )
    if any(rule.matches(words) for rule in rules):
        assert SEVERITY[after] >= SEVERITY[before]


def test_an_unknown_command_is_told_with_near_ones():
    with pytest.raises(errors.UsageError, match="no command 'loook' in the catalogue") as caught:
        find_entry(policy(), "loook")
    assert "did you mean look" in caught.value.hint
    assert "pay" in caught.value.hint


@pytest.mark.parametrize("request_", [Request(), Request(argv=())])
def test_an_empty_command_is_a_usage_error(request_):
    with pytest.raises(errors.UsageError, match="empty"):
        evaluate(policy(), request_)


# CASES 107: what looks like a secret is hidden at birth; the command gets it all the same
FORMS = [
    ("curl", "--token=S3CR3T", "x"),
    ("curl", "--token", "S3CR3T", "x"),
    ("app", "-password", "S3CR3T"),
    ("app", "--api-key=S3CR3T"),
    ("app", "--db.password=S3CR3T"),
    ("app", "password=S3CR3T"),
    ("app", "client_secret:S3CR3T"),
    ("mysql", "-u", "root", "-pS3CR3T"),
    ("/usr/bin/mysqldump", "-pS3CR3T", "shop"),
    ("sshpass", "-pS3CR3T", "ssh", "h"),
    ("curl", "https://user:S3CR3T@host/path"),
    ("psql", "postgresql://u:S3CR3T@h/db"),
    ("scp", "x", "user:S3CR3T@host:"),
    ("env", "DB_PASSWORD=S3CR3T", "app"),
    ("env", "GITHUB_TOKEN=S3CR3T", "app"),
    ("curl", "-H", "Authorization: Bearer S3CR3T"),
    ("curl", "-HAuthorization: Basic S3CR3T"),
    ("app", "--passphrase", "S3CR3T"),
    ("app", "AWS_SECRET_ACCESS_KEY=S3CR3T"),
    ("app", "--PASSWORD=S3CR3T"),
    ("app", "--pin=S3CR3T"),
]
SHELL_FORMS = [
    "mysql -u root -pS3CR3T shop",
    "curl --token S3CR3T x && true",
    "TOKEN='S3CR3T' app",
    'export PASSWORD="S3CR3T S3CR3T"; app',
    "curl https://u:S3CR3T@h/ | sh",
    "curl -H 'Authorization: Bearer S3CR3T' x",
    "app --password=S3CR3T --token=S3CR3T",
]


@pytest.mark.parametrize("argv", FORMS, ids=" ".join)
def test_a_secret_of_a_raw_command_is_kept_nowhere_but_reaches_it(argv):
    made = render_raw(policy("redact: [pin]"), Request(argv=argv))
    _check_hidden(made, argv)


@pytest.mark.parametrize("text", SHELL_FORMS)
def test_a_secret_inside_shell_text_is_hidden(text):
    made = render_raw(policy(), Request(shell=text))
    _check_hidden(made, ("bash", "-c", text))


def _check_hidden(made, argv):
    kept = command.plain_frames(made) + repr(made).encode() + command.display(made).encode()
    assert b"S3CR3T" not in kept + repr(command.to_json(made)).encode()
    assert tuple(_whole(element).decode() for element in made.argv) == argv
    other = render_raw(policy("redact: [pin]"), Request(argv=tuple(word.replace("S3CR3T", "OTHER") for word in argv)))
    assert command.fingerprint(made) == command.fingerprint(other)
    assert command.secret_fingerprint(made, b"k" * 32) != command.secret_fingerprint(other, b"k" * 32)


def _whole(element):
    return b"".join(piece.value.value if piece.value else piece.text for piece in element)


@pytest.mark.parametrize(
    "argv",
    [
        ("ls", "-la", "/etc"),
        ("systemctl", "restart", "nginx"),
        ("mkdir", "-p", "/srv/x"),
        ("tokenize", "x"),
        ("git", "clone", "git@github.com:a/b.git"),
        ("cat", "/etc/passwd"),
        ("passwd", "--status", "bob"),
        ("rsync", "a", "user@host:/p"),
        ("bash", "-c", "ls -p | wc"),
    ],
    ids=" ".join,
)
def test_an_ordinary_command_is_left_as_it_is(argv):
    made = render_raw(policy(), Request(argv=argv))
    assert all(piece.kind == "text" for element in made.argv for piece in element)


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40), min_size=1, max_size=5
    )
)
def test_hiding_never_changes_what_runs(argv):
    made = render_raw(policy(), Request(argv=tuple(argv)))
    assert [_whole(element).decode() for element in made.argv] == argv
    names = [piece.name for element in made.argv for piece in element if piece.kind == "hidden"]
    assert len(names) == len(set(names))
    assert all(command.NAME_PATTERN.match(name) for name in names)
