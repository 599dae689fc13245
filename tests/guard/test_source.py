"""The guard's text: what a host, a linter and a truncated copy make of it."""

from __future__ import annotations

import re

from tests.guard.wire import GUARD_SOURCE, Request, Store, mint


def test_it_is_plain_text_and_evaluates_nothing():
    text = GUARD_SOURCE.read_bytes()
    assert text.isascii()
    assert text.endswith(b'\n}\n\nmain "$@"\n')
    assert not re.search(rb"(^|[;&|(\s])(eval|echo|local|source|typeset)\s", re.sub(rb"#.*|'[^']*'", b"", text))


def test_a_truncated_guard_runs_nothing(dash: Store, tmp_path):
    text = dash.guard.read_bytes()
    for cut in range(0, len(text), 997):
        dash.guard.write_bytes(text[:cut])
        answer = dash.ask(Request(op=mint(), argv=[b"touch", bytes(tmp_path / "ran")]))
        assert answer.words == []
        assert not (tmp_path / "ran").exists()


def test_every_variable_is_set_before_anything_uses_it():
    """mksh goes on where `set -u` ends other shells, so nothing may lean on it."""
    text = GUARD_SOURCE.read_text()

    def body(function: str) -> str:
        return text[text.index(f"\n{function}() {{") :].split("\n}\n")[0]

    assigned = re.compile(r"(?<![\w$])(_[a-z0-9_]+)=")
    made = {name for function in ("main", "forget_marker", "find_tools") for name in assigned.findall(body(function))}
    made |= set(re.findall(r"\bfor (_[a-z0-9_]+)\b", text)) | set(re.findall(r"^(_[a-z0-9_]+)=", text, re.MULTILINE))
    within_the_other_users_shell = {"_v", "_n", "_l"}
    used = set(re.findall(r"\$\{?(_[a-z0-9_]+)", text))
    assert used - made - within_the_other_users_shell == set()
