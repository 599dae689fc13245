"""Cases 109 and 110 as far as they are built: an unknown or running operation, and a person in a hurry."""

import signal
import time

from tests.support.program import Program, finish


def until(sshd) -> str:
    """Shell text that ends when the file `go` stands in the home."""
    return f"while ! test -e {sshd.home()}/go; do sleep 0.05; done"


def test_109_an_unresolved_destructive_operation_is_not_retried_and_says_what_to_do(program: Program, sshd):
    alias, counter = sshd.accounts[sshd.user].alias, sshd.counter()
    words = ("run", alias, "wipe", f"path={counter.path}", "then=sleep 60", "--op", "op-w")
    process = program.start(*words)
    counter.wait_for(1)
    sshd.end_sessions()  # the guard and its command too, as a host that went down would
    done = finish(process)
    assert done.code == 5, done.text
    assert "hint: " in done.text
    for _ in range(2):
        done = program("replay", "op-w", "--json")
        assert done.code == 5, done.text
        [row] = done.json["operations"]
        assert row["action"] == "needs_decision"
        assert row["state"] == "unknown"
        assert row["next"]["why"]
    done = program(*words)
    assert done.code == 5
    shown = program("show", "op-w").stdout.decode()
    assert "nothing by itself" in shown
    assert "person decides" in shown
    assert counter.count == 1
    # the same words without the ID meet their twin
    done = program(*words[:-2])
    assert done.code == 11
    assert "sshop replay op-w" in done.text
    assert counter.count == 1
    # a fence closes the name; that the command ran, and how it ended, is as unknown as before
    done = program("fence", "op-w")
    assert (done.code, "cannot run any more" in done.text) == (0, True), done.text
    for verb, *more in (("reconcile",), ("replay",), ("cancel",), ("fence", "--json")):
        done = program(verb, "op-w", *more)
        assert done.code == (0 if verb == "fence" else 5), done.text
    assert (done.json["state"], done.json["next"]["action"]) == ("unknown", "decide")
    assert program(*words).code == 5
    assert "nothing by itself" in program("show", "op-w").stdout.decode()
    assert counter.count == 1


def test_110_a_running_operation_is_attached_to_and_never_started_again(program: Program, sshd):
    alias, counter = sshd.accounts[sshd.user].alias, sshd.counter()
    words = ("run", alias, "wipe", f"path={counter.path}", f"then={until(sshd)}; exit 4", "--op", "op-w")
    first = program(*words, "--wait", "0")
    assert first.code == 6
    assert "running" in first.text
    assert program("replay", "op-w", "--wait", "0").code == 6
    assert program("replay", "--all", "--yes", "--wait", "0").code == 6
    assert "running on the host" in program("show", "op-w").stdout.decode()
    (sshd.home() / "go").touch()
    done = program("replay", "op-w", "--json")
    assert done.code == 1
    [row] = done.json["operations"]
    assert (row["state"], row["exit_status"], row["replayed"]) == ("failed", 4, True)
    assert counter.count == 1


def test_a_look_that_is_told_to_stop_says_what_the_ledger_knows(program: Program, sshd):
    alias, counter = sshd.accounts[sshd.user].alias, sshd.counter()
    words = ("run", alias, "add", f"path={counter.path}", "then=sleep 60", "--op", "op-i", "--wait", "0")
    assert program(*words).code == 6
    process = program.start("reconcile", "op-i", "--wait", "50", "--json")
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert (done.code, done.json["operation"]["state"]) == (6, "open"), done.text
    assert done.json["operation"]["error"]["code"] == "interrupted"
    assert program("cancel", "op-i").code == 0


def test_110_cancel_says_what_it_did(program: Program, sshd):
    alias, counter = sshd.accounts[sshd.user].alias, sshd.counter()
    words = ("run", alias, "wipe", f"path={counter.path}", "then=sleep 30; printf x >>$1", "--op", "op-w")
    assert program(*words, "--wait", "0").code == 6
    started = time.monotonic()
    done = program("cancel", "op-w", "--json")
    assert time.monotonic() - started < 20
    assert done.code == 0, done.text
    assert done.json["state"] == "failed"
    assert done.json["signal"] == "TERM"
    assert counter.count == 1
    done = program("replay", "op-w")
    assert (done.code, "ended by a cancel request" in done.text) == (1, True), done.text
    assert counter.count == 1


def test_a_replay_that_sent_nothing_does_not_say_that_it_ran(alone: Program):
    assert alone("run", "nowhere", "see", "path=/x", "--op", "op-n").code == 8
    done = alone("replay", "op-n", "--json")
    assert done.code == 8, done.text
    assert [row["action"] for row in done.json["operations"]] == ["skipped"]
    done = alone("fence", "op-n")
    assert (done.code, "outcome unknown" in done.text) == (8, False), done.text


def test_output_that_is_all_errors_is_shown_with_the_command_that_prints_it(program: Program, sshd):
    done = program("run", sshd.accounts[sshd.user].alias, "--op", "op-e", "--", "sh", "-c", "echo bad >&2; exit 3")
    assert done.code == 1, done.text
    assert "sshop output op-e --stream err" in program("show", "op-e").stdout.decode()


def test_all_is_not_replayed_without_a_word_from_a_person(program: Program, sshd):
    alias, counter = sshd.accounts[sshd.user].alias, sshd.counter()
    words = ("run", alias, "add", f"path={counter.path}", f"then={until(sshd)}", "--op", "op-a", "--wait", "0")
    assert program(*words).code == 6
    done = program("replay", "--all")
    assert done.code == 2
    assert "--yes" in done.text
    assert program("replay", "--all", "--dry-run").code == 6


def test_show_fits_a_screen(program: Program, sshd):
    alias, counter = sshd.accounts[sshd.user].alias, sshd.counter()
    words = ("run", alias, "add", f"path={counter.path}", "then=" + "true; " * 600, "--op", "op-a")
    assert program(*words, "--note", "n" * 5000).code == 0
    lines = program("show", "op-a").stdout.decode().splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) < 400
    names = [line[:12].strip() for line in lines[: lines.index("")]]
    assert names[:3] == ["operation", "safe now", "settled by"]
