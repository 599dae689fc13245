"""What a policy may say but should not is found, with its place; the shipped one is clean but for what is simply so."""

# ruff: noqa: E501 - a row of the table is one line

import pytest

from sshop import catalogue
from sshop.catalogue.build import build
from sshop.config import shipped_policies
from sshop.core.lint import CHECKS, lint

GOOD = "timeout_s: 5, subject: 'x:y'"
FOUND = [
    ("append_only_without_verify", f"category: append_only, argv: [a], {GOOD}"),
    ("destructive_without_approval", f"category: destructive, argv: [a], {GOOD}"),
    ("destructive_without_timeout", "category: destructive, argv: [a], approval: required, subject: s"),
    ("unused_parameter", f"category: append_only, argv: [a], verify: {{argv: [b]}}, params: {{p: {{type: integer, example: 1}}}}, {GOOD}"),
    ("parameter_only_described", "category: append_only, argv: [a], verify: {argv: [b]}, timeout_s: 5, subject: '{p}', params: {p: {type: integer, example: 1}}"),
    ("condition_ignores_parameter", f"category: convergent, argv: [a, '{{p}}'], converged_when: [b], params: {{p: {{type: integer, example: 1}}}}, {GOOD}"),
    ("read_only_with_effects", "category: read_only, argv: [a], effects: [notification], timeout_s: 5"),
    ("pattern_takes_anything", "category: read_only, argv: [a, '{p}'], params: {p: {type: string, pattern: '.*', example: x}}, timeout_s: 5"),
    ("message_without_verify", f"category: append_only, argv: [a], effects: [notification], {GOOD}"),
    ("no_timeout", "category: read_only, argv: [a]"),
    ("no_subject", "category: append_only, argv: [a], verify: {argv: [b]}, timeout_s: 5"),
    ("no_example", "category: read_only, argv: [a, '{p}'], params: {p: {type: integer}}, timeout_s: 5"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "fields"), FOUND, ids=[row[0] for row in FOUND])
def test_a_weakness_is_found_and_nothing_else(code, fields):
    policy = build({"catalogue/a.yaml": f"commands:\n  c: {{summary: s, {fields}}}\n".encode()})
    (finding,) = lint(policy)
    assert (finding.code, finding.place, finding.name) == (code, "catalogue/a.yaml:2", "c")
    assert str(finding).startswith(f"catalogue/a.yaml:2: {finding.level}: c: ")


def test_every_check_has_its_row():
    assert {code for _, code, _ in CHECKS} == {row[0] for row in FOUND}


def test_findings_come_in_the_order_of_the_files():
    text = "commands:\n  b: {summary: s, category: read_only, argv: [a]}\n  a: {summary: s, category: destructive, argv: [a]}\n"
    policy = build(
        {"catalogue/b.yaml": text.encode(), "catalogue/a.yaml": text.replace("b:", "c:").replace("a:", "d:").encode()}
    )
    places = [finding.place for finding in lint(policy)]
    assert places == sorted(places)
    assert [finding.level for finding in lint(policy) if finding.place == "catalogue/b.yaml:3"] == [
        "warning",
        "warning",
        "note",
    ]


def test_the_shipped_policy_has_no_finding_but_the_note_that_mail_cannot_be_looked_for():
    found = [(finding.name, finding.level, finding.code) for finding in lint(catalogue.load(shipped_policies()))]
    assert found == [("mail-sent", "note", "message_without_verify")]


def test_the_shipped_policy_has_each_category_well_represented():
    entries = catalogue.load(shipped_policies()).entries.values()
    counts = {}
    for entry in entries:
        counts[entry.category] = counts.get(entry.category, 0) + 1
    assert len(entries) >= 30
    assert min(counts.get(category, 0) for category in ("read_only", "convergent", "append_only", "destructive")) >= 5
