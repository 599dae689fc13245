"""The claim: races, fences, generations, twins, acknowledgements, horizon, and what may stand at a marker's name."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.guard.rooms import Room
from tests.guard.wire import Channel, Request, Store, mint
from tests.support.counter import Counter
from tests.support.sample import sample

BAD_IDS = [
    "", ".", "..", "../x", "/tmp/x", "a/b", "-rf", "a b", "a ", "$(touch x)", "`id`", "*", "x" * 300, "zażółć", "a+1",
    "a\tb", "a\\b", "_a", "a'b",
]  # fmt: skip


def counting(counter: Counter, then: str = "") -> list[bytes]:
    return [part.encode() for part in counter.argv(then)]


def start(store: Store, request: Request) -> Channel:
    channel = store.open(request)
    head = request.head()
    channel.send(head)
    assert channel.read("hello") == "hello", channel.answer.lines
    channel.send(b"go %d\n" % head.count(b"\n"))
    return channel


def kill_guard(channel: Channel) -> None:
    channel.process.kill()
    channel.close()


def leader(store: Store, op: str, gen: int = 1) -> int:
    """The command's process, from the marker, once it leads a session of its own."""
    deadline = time.monotonic() + 5
    while "\nprocess pid=" not in store.text(op, gen):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    pid = int(store.text(op, gen).split("\nprocess pid=")[1].split(":")[0])
    while os.getpgid(pid) != pid:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return pid


def interrupt(store: Store, op: str, argv: list[bytes], **request: object) -> Request:
    """Leaves an operation interrupted: guard and command killed while it ran."""
    asked = Request(op=op, argv=argv, **request)  # type: ignore[arg-type]
    channel = start(store, asked)
    channel.read("started")
    pid = leader(store, op, int(asked.generation[0]))  # type: ignore[call-overload]
    time.sleep(0.1)
    channel.process.kill()
    os.killpg(pid, signal.SIGKILL)
    channel.close()
    return asked


@pytest.mark.parametrize("round_", sample(range(100), 2, salt="race"))
def test_of_fifty_guards_with_one_id_one_runs(store, tmp_path, round_):
    """Case 026."""
    counter = Counter(tmp_path / "count")
    op = mint()
    store.ask(Request("fence", mint()))
    with ThreadPoolExecutor(50) as pool:
        answers = list(
            pool.map(lambda _: store.ask(Request(op=op, argv=counting(counter, "echo hi; exit 3"))), range(50))
        )
    assert counter.count == 1
    assert [answer.result["status"] for answer in answers] == ["3"] * 50
    assert [answer.out for answer in answers] == [b"hi\n"] * 50
    assert sum(answer.result["own"] == "1" for answer in answers) == 1
    assert len({answer.result["rec"] for answer in answers}) == 1


def test_of_eight_fresh_ids_with_one_fingerprint_one_runs(store, tmp_path):
    counter = Counter(tmp_path / "count")
    argv = counting(counter, "sleep 0.5")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: store.ask(Request(op=mint(), argv=argv)), range(8)))
    assert counter.count == 1
    winner = next(a for a in answers if "result" in a.words)
    for answer in answers:
        if answer is not winner:
            assert answer.refusal == "unresolved_twin"
            assert answer.get("no")["twin"].startswith("op_")
    assert winner.result["status"] == "0"


def test_fifty_fresh_ids_that_mean_it_all_run(dash, tmp_path):
    counter = Counter(tmp_path / "count")
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: dash.ask(Request(op=mint(), argv=counting(counter), new=True)), range(50)))
    assert all(answer.result["status"] == "0" for answer in answers)
    assert counter.count == 50


@pytest.mark.parametrize("round_", range(4))
def test_a_fence_and_a_run_never_both_win(store, tmp_path, round_):
    counter = Counter(tmp_path / "count")
    op = mint()
    with ThreadPoolExecutor(8) as pool:
        runs = [pool.submit(store.ask, Request(op=op, argv=counting(counter))) for _ in range(4)]
        fences = [pool.submit(store.ask, Request("fence", op)) for _ in range(4)]
    words = [set(future.result().words) for future in fences]
    if counter.count:
        assert counter.count == 1
        assert not any("fenced" in found for found in words)
    else:
        assert all("fenced" in found for found in words)
        assert all(future.result().refusal == "fenced" for future in runs)


def test_a_fenced_operation_never_runs(store, tmp_path):
    counter = Counter(tmp_path / "count")
    op = mint()
    late = Request(op=op, argv=counting(counter))
    channel = store.open(late)
    channel.send(late.head())
    channel.read("hello")
    fenced = store.ask(Request("fence", op))
    assert fenced.words[-2:] == ["fenced", "end"]
    channel.send(b"go %d\n" % late.head().count(b"\n"))
    channel.read("end")
    assert channel.close().refusal == "fenced"
    assert store.ask(Request("fence", op)).get("fenced")["rec"] == fenced.get("fenced")["rec"]
    assert store.ask(Request("cancel", op)).words[-2] == "fenced"
    assert store.ask(Request(op=op, argv=late.argv, generation=(2, "first"))).refusal == "fenced"
    assert counter.count == 0


def test_the_same_request_delivered_twice_runs_once(store, tmp_path):
    """LIMBO's redelivery, with the nonce and all."""
    counter = Counter(tmp_path / "count")
    request = Request(op=mint(), argv=counting(counter, "sleep 0.2; exit 5"))
    head = request.head()
    whole = head + b"go %d\n" % head.count(b"\n")
    channels = [store.open(request) for _ in range(6)]
    for channel in channels:
        channel.send(whole)
    for channel in channels:
        channel.read("end")
        assert channel.close().result["status"] == "5"
    assert counter.count == 1
    assert store.ask(request).result["own"] == "0"


def test_another_request_under_the_same_id_is_a_conflict(store, tmp_path):
    """Case 018."""
    counter = Counter(tmp_path / "count")
    op = mint()
    first = store.ask(Request(op=op, argv=counting(counter, "exit 3")))
    other = store.ask(Request(op=op, argv=counting(counter, "exit 4")))
    assert other.refusal == "key_conflict"
    assert other.get("no")["claim"] == "none"
    assert counter.count == 1
    again = store.ask(Request(op=op, argv=counting(counter, "exit 3")))
    assert again.result["rec"] == first.result["rec"]


def test_a_second_attempt_attaches_and_gets_the_one_result(store, tmp_path):
    """Case 017."""
    counter = Counter(tmp_path / "count")
    request = Request(op=mint(), argv=counting(counter, "sleep 1; echo out; exit 3"))
    channel = start(store, request)
    channel.read("started")
    look = store.ask(Request(op=request.op, argv=request.argv, control=[b"P 0"]))
    assert look.words == ["hello", "running", "end"]
    assert store.ask(Request("inquire", request.op, control=[b"P 0"])).words == ["hello", "running", "end"]
    attached = store.ask(Request(op=request.op, argv=request.argv))
    assert attached.words[:3] == ["hello", "running", "result"]
    assert (attached.result["status"], attached.result["own"], attached.out) == ("3", "0", b"out\n")
    channel.read("end")
    assert channel.close().result["own"] == "1"
    assert counter.count == 1


@pytest.mark.parametrize("op", BAD_IDS)
def test_a_bad_id_is_refused_and_nothing_is_made(dash, tmp_path, op):
    """Case 083."""
    counter = Counter(tmp_path / "count")
    before = sorted(tmp_path.iterdir())
    answer = dash.ask(Request(op=op, argv=counting(counter)))
    assert answer.refusal == "bad_request"
    assert counter.count == 0
    assert sorted(tmp_path.iterdir()) == before
    assert not list(dash.root.rglob("markers/*"))


@pytest.mark.parametrize(
    "lines",
    [
        [b"q unknown"], [b"a"], [b"l x"], [b"+x"], [b".x"], [b"e 1=2"], [b"e NAME"], [b"K sometimes"], [b"G 1 because"],
        [b"G x first"], [b"L soon"], [b"M -1"], [b"Y perhaps"], [b"F XYZ"], [b"u -root"], [b"s A-B"], [b"C 1"], [b""],
        [b"I op 1"], [b"W ../x"], [b"i"],
    ],
)  # fmt: skip
def test_a_line_that_is_not_known_runs_nothing(dash, tmp_path, lines):
    counter = Counter(tmp_path / "count")
    answer = dash.ask(Request(op=mint(), control=lines, argv=counting(counter)))
    assert answer.words[0] == "no" or answer.refusal in ("bad_request", "bad_fingerprint"), answer.lines
    assert counter.count == 0


def test_nothing_runs_before_go_was_read_whole(store, tmp_path):
    counter = Counter(tmp_path / "count")
    request = Request(op=mint(), argv=counting(counter), stdin=b"12345")
    head = request.head()
    lines = head.count(b"\n") + 1
    whole = head + b"b 5\n12345" + b"go %d\n" % lines
    for cut in sample(range(len(whole)), 12, salt=store.shell, whole=200):
        channel = store.open(request)
        channel.send(whole[:cut])
        channel.close()
        assert counter.count == 0, whole[:cut]
        assert not store.root.rglob("*.in") or not list(store.root.rglob("*.in"))
    for wrong in (b"go %d\n" % (lines + 1), b"go\n", b"go x\n", b"GO %d\n" % lines, b" go %d\n" % lines):
        channel = store.open(request)
        channel.send(head + b"b 5\n12345")
        channel.read("spooled")
        channel.send(wrong)
        channel.read("end")
        assert channel.close().refusal == "bad_request"
    assert counter.count == 0
    assert store.ask(request).result["status"] == "0"


def test_what_arrived_is_what_is_compared(store, tmp_path):
    counter = Counter(tmp_path / "count")
    request = Request(op=mint(), argv=counting(counter), stdin=b"12345")
    head = request.head()
    for broken in (head.replace(b"printf x", b"printf y"), head.replace(b"a -c", b"a -d")):
        channel = store.open(request)
        channel.send(broken)
        channel.read("hello")
        channel.send(b"b 5\n12345")
        channel.read("spooled")
        channel.send(b"go %d\n" % (broken.count(b"\n") + 1))
        channel.read("end")
        assert channel.close().refusal == "bad_fingerprint"
    channel = store.open(request)
    channel.send(head)
    channel.read("hello")
    channel.send(b"b 5\n12346")
    channel.read("end")
    assert channel.close().refusal == "bad_input"
    channel = store.open(request)
    channel.send(head)
    channel.read("hello")
    channel.send(b"go %d\n" % head.count(b"\n"))
    channel.read("end")
    assert channel.close().refusal == "bad_request"
    assert counter.count == 0


# --- generations


def test_interrupted_is_found_and_only_opened_by_convergence_or_decision(store, tmp_path):
    """Case 050."""
    counter = Counter(tmp_path / "count")
    argv = counting(counter, "[ -e /nonexistent ] || [ $(stat -c %s " + str(counter.path) + ") -gt 1 ] || sleep 60")
    op = mint()
    interrupt(store, op, argv)
    state = store.ask(Request("inquire", op)).get("state")
    assert state["op"] == "interrupted"
    refused = store.ask(Request(op=op, argv=argv))
    assert refused.refusal == "interrupted"
    assert store.ask(Request(op=op, argv=argv, generation=(2, "first"))).refusal == "interrupted"
    assert store.ask(Request(op=op, argv=argv, generation=(2, "converges"))).refusal == "interrupted"
    assert counter.count == 1
    answer = store.ask(Request(op=op, argv=argv, generation=(2, "decision")))
    assert answer.get("claimed")["gen"] == "2"
    assert answer.result["status"] == "0"
    assert counter.count == 2
    late = store.ask(Request(op=op, argv=argv))
    assert late.result["gen"] == "2"
    assert late.result["own"] == "0"


def test_a_convergent_command_is_opened_again_after_an_interruption(store, tmp_path):
    counter = Counter(tmp_path / "count")
    argv = counting(counter, f"[ $(stat -c %s {counter.path}) -gt 1 ] || sleep 60")
    op = mint()
    interrupt(store, op, argv, category="convergent")
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(
                lambda _: store.ask(Request(op=op, argv=argv, category="convergent", generation=(2, "converges"))),
                range(8),
            )
        )
    assert all(answer.result["status"] == "0" and answer.result["gen"] == "2" for answer in answers)
    assert counter.count == 2


def test_a_decision_does_not_reopen_what_has_exited(store, tmp_path):
    counter = Counter(tmp_path / "count")
    op = mint()
    store.ask(Request(op=op, argv=counting(counter, "exit 1")))
    answer = store.ask(Request(op=op, argv=counting(counter, "exit 1"), generation=(2, "decision")))
    assert answer.result["own"] == "0"
    assert counter.count == 1


def test_an_exit_that_means_nothing_was_done_opens_the_next_for_what_converges(store, tmp_path):
    counter = Counter(tmp_path / "count")
    op = mint()
    for gen, own in ((1, "1"), (2, "1"), (2, "0")):
        answer = store.ask(
            Request(op=op, argv=counting(counter, "exit 75"), category="convergent", generation=(gen, "converges"))
        )
        assert (answer.result["status"], answer.result["own"]) == ("75", own)
    assert counter.count == 2


def test_never_started_is_proved_and_opened_again(store, tmp_path):
    """The guard dies between claim and start: here by a condition that is killed together with it."""
    counter = Counter(tmp_path / "count")
    op = mint()
    asking = tmp_path / "asking"
    condition = [b"/bin/sh", b"-c", f"echo $$ >{asking}; exec sleep 60".encode()]
    channel = start(store, Request(op=op, argv=counting(counter), condition=condition, category="convergent"))
    while not asking.exists() or not asking.read_text():
        time.sleep(0.01)
    kill_guard(channel)
    os.kill(int(asking.read_text()), signal.SIGKILL)
    assert store.ask(Request("inquire", op)).get("state")["op"] == "never_started"
    assert (
        store.ask(Request(op=op, argv=counting(counter), category="convergent")).get("state")["op"] == "never_started"
    )
    assert counter.count == 0
    answer = store.ask(Request(op=op, argv=counting(counter), generation=(2, "first"), category="convergent"))
    assert answer.result["gen"] == "2"
    assert counter.count == 1


def test_the_supervisor_dies_alone_and_the_command_is_still_running(store, tmp_path):
    counter = Counter(tmp_path / "count")
    op = mint()
    channel = start(store, Request(op=op, argv=counting(counter, "sleep 1; sleep 1")))
    channel.read("started")
    leader(store, op)
    time.sleep(0.1)
    kill_guard(channel)
    assert store.ask(Request("inquire", op, control=[b"P 0"])).words[1] == "running"
    assert store.ask(Request("inquire", op)).get("state")["op"] == "interrupted"
    assert counter.count == 1


def test_nothing_holds_the_channel_when_the_guard_is_gone(store, tmp_path):
    """Neither the command nor what watches over its limit."""
    op = mint()
    channel = start(store, Request(op=op, argv=[b"sleep", b"60"], control=[b"L 50"]))
    channel.read("started")
    pid = leader(store, op)
    begun = time.monotonic()
    kill_guard(channel)
    assert time.monotonic() - begun < 5
    os.killpg(pid, signal.SIGKILL)


def test_a_zombie_is_dead(store, tmp_path):
    """Case 116: nobody reaps the guard, which leads a session of zombies."""
    op = mint()
    channel = start(store, Request(op=op, argv=[b"sleep", b"60"]))
    channel.read("started")
    pid = leader(store, op)
    channel.process.send_signal(signal.SIGKILL)
    os.killpg(pid, signal.SIGKILL)
    time.sleep(0.1)
    assert Path(f"/proc/{channel.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    assert store.ask(Request("inquire", op)).get("state")["op"] == "interrupted"
    channel.close()


def test_a_pid_that_now_belongs_to_another_is_not_alive(store, tmp_path):
    """Case 046."""
    op = mint()
    interrupt(store, op, [b"sleep", b"60"])
    text = store.text(op)
    mine = f"{os.getpid()}:1"
    sup = text.split(" sup=")[1].split(" ")[0]
    process = text.split("\nprocess pid=")[1].split(" ")[0]
    changed = text.replace(sup, mine).replace(process, mine)
    store.marker(op).write_text(changed + "\n" * (4096 - len(changed)))
    assert store.ask(Request("inquire", op)).get("state")["op"] == "interrupted"


def test_another_boot_makes_everything_unfinished_interrupted(store, tmp_path, room):
    """Reboot while it ran, and while it was claimed: another boot proves nothing about a missing `started`."""
    ran, claimed = mint(), mint()
    channel = start(store, Request(op=ran, argv=[b"sleep", b"3"]))
    channel.read("started")
    (tmp_path / "boot").write_text("11111111-2222-3333-4444-555555555555\n")
    here: Room = room(f"mount --bind {tmp_path}/boot /proc/sys/kernel/random/boot_id")
    other = Store(store.root, Path(store.sh).parent.name.removeprefix("shell-"), here.prefix)
    assert other.ask(Request("hello", ran)).get("hello")["boot"].startswith("11111111-2222")
    assert other.ask(Request("inquire", ran)).get("state")["op"] == "interrupted"
    channel.read("end")
    channel.close()
    assert other.ask(Request("inquire", ran)).result["status"] == "0"
    stopped = start(store, Request(op=claimed, argv=[b"true"], condition=[b"sleep", b"2"], category="convergent"))
    stopped.read("claimed")
    kill_guard(stopped)
    assert other.ask(Request("inquire", claimed)).get("state")["op"] == "interrupted"
    assert store.ask(Request("inquire", claimed)).get("state")["op"] == "never_started"


@pytest.mark.parametrize(
    "kind", ["fifo", "folder", "dangling", "link", "link to a folder", "empty", "garbage", "zeros"]
)
def test_whatever_stands_at_a_markers_name_hangs_and_runs_nothing(store, tmp_path, kind):
    """Case 028, and PERFORMANCE's traps: it is unreadable, and a decision needs its digest."""
    counter = Counter(tmp_path / "count")
    op = mint()
    store.ask(Request("fence", mint()))
    path, elsewhere = store.marker(op), tmp_path / "elsewhere"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "dangling":
        path.symlink_to(elsewhere)
    elif kind == "link":
        elsewhere.write_text("text")
        path.symlink_to(elsewhere)
    elif kind == "link to a folder":
        elsewhere.mkdir()
        path.symlink_to(elsewhere)
    else:
        path.write_bytes({"empty": b"", "garbage": b"claimed rec=x\n\xff\xfe", "zeros": bytes(4096)}[kind])
    request = Request(op=op, argv=counting(counter))
    refused = store.ask(request)
    assert refused.refusal == "unreadable"
    assert store.ask(Request("inquire", op)).get("state")["op"] == "unreadable"
    assert store.ask(Request(op=op, argv=request.argv, generation=(2, "decision"))).refusal == "unreadable"
    wrong = (2, "decision", "0" * 64)
    assert store.ask(Request(op=op, argv=request.argv, generation=wrong)).refusal == "unreadable"
    assert counter.count == 0
    assert not elsewhere.exists() or kind in ("link", "link to a folder")
    assert kind != "link to a folder" or not list(elsewhere.iterdir())
    digest = refused.get("no")["bytes"]
    if kind in ("empty", "garbage", "zeros"):
        answer = store.ask(Request(op=op, argv=request.argv, generation=(2, "decision", digest)))
        assert answer.result["gen"] == "2"
        assert counter.count == 1
    else:
        assert digest == "-"


def test_a_marker_of_another_case_is_not_mine(store):
    """A case-insensitive file system shows one ID's marker under another's name."""
    store.ask(Request(op="Upper", argv=[b"true"]))
    os.link(store.marker("Upper"), store.marker("upper"))
    assert store.ask(Request("inquire", "upper")).get("state")["op"] == "unreadable"


@pytest.mark.parametrize("cut", range(0, 700, 23))
def test_a_marker_that_is_cut_anywhere_is_never_read_as_something_better(dash, tmp_path, cut):
    op = mint()
    counter = Counter(tmp_path / "count")
    request = Request(op=op, argv=counting(counter))
    dash.ask(request)
    whole = dash.marker(op).read_bytes()
    dash.marker(op).write_bytes(whole[:cut] + b"\n" * (4096 - cut))
    answer = dash.ask(request)
    if "result" in answer.words:
        assert whole[:cut].count(b"\nexited status=0 ") == 1
    else:
        assert answer.words[-2] == "state" or answer.refusal in ("unreadable", "interrupted")
    assert counter.count == 1


# --- twins and acknowledgements


def test_a_twin_is_refused_until_the_first_is_acknowledged(store, tmp_path):
    counter = Counter(tmp_path / "count")
    first = Request(op=mint(), argv=counting(counter))
    rec = store.ask(first).result["rec"]
    second = Request(op=mint(), argv=first.argv)
    answer = store.ask(second)
    assert answer.refusal == "unresolved_twin"
    assert answer.get("no")["twin"] == first.op
    assert answer.get("hello")["twin"] == first.op
    assert answer.get("hello")["twinop"] == "exited"
    assert not store.marker(second.op).exists()
    assert store.ask(first).result["own"] == "0"
    acked = store.ask(Request("ack", first.op, control=[b"A " + rec.encode()]))
    assert acked.get("acked")["rec"] == rec
    assert store.text(first.op).splitlines()[-1].startswith("acked up=")
    assert store.ask(second).result["own"] == "1"
    assert counter.count == 2
    again = store.ask(Request("ack", first.op, control=[b"A " + rec.encode()]))
    assert again.get("acked")["rec"] == rec
    assert store.text(first.op).count("\nacked ") == 1
    third = store.ask(Request(op=mint(), argv=first.argv))
    assert third.refusal == "unresolved_twin"
    assert third.get("no")["twin"] == second.op


def test_an_acknowledgement_on_the_same_channel_frees_the_fingerprint(store, tmp_path):
    counter = Counter(tmp_path / "count")
    for _ in range(3):
        answer = store.ask(Request(op=mint(), argv=counting(counter)), ack=True)
        assert answer.words[-1] == "acked"
    assert counter.count == 3
    assert list((store.base / "index").iterdir()) == []
    assert list((store.base / "spool").iterdir()) == []


def test_new_takes_no_entry_and_meets_none(store, tmp_path):
    counter = Counter(tmp_path / "count")
    store.ask(Request(op=mint(), argv=counting(counter)))
    store.ask(Request(op=mint(), argv=counting(counter), new=True))
    assert counter.count == 2
    assert len(list((store.base / "index").iterdir())) == 1


def test_an_ack_of_an_unknown_record_is_refused(store):
    op = mint()
    store.ask(Request(op=op, argv=[b"true"]))
    assert store.ask(Request("ack", op, control=[b"A rec_" + b"0" * 32])).refusal == "no_record"
    assert store.ask(Request("ack", mint(), control=[b"A rec_" + b"0" * 32])).refusal == "no_record"


def test_an_ack_takes_no_entry_of_another_operation(store):
    first = Request(op=mint(), argv=[b"true"])
    rec = store.ask(first, ack=True).result["rec"]
    second = Request(op=mint(), argv=[b"true"])
    store.ask(second)
    store.ask(Request("ack", first.op, control=[b"A " + rec.encode()]))
    assert store.ask(Request(op=mint(), argv=[b"true"])).get("no")["twin"] == second.op


@pytest.mark.parametrize("kind", ["garbage", "dangling", "fifo", "folder"])
def test_a_broken_index_entry_blocks_nothing(store, tmp_path, kind):
    counter = Counter(tmp_path / "count")
    store.ask(Request("fence", mint()))
    request = Request(op=mint(), argv=counting(counter))
    path = store.base / "index" / request.fingerprint()
    if kind == "garbage":
        path.write_bytes(bytes(4096))
    elif kind == "dangling":
        path.symlink_to(tmp_path / "x")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert store.ask(request).result["own"] == "1"
    assert counter.count == 1


def test_an_entry_without_a_marker_blocks_another_id_and_not_its_own(store, tmp_path):
    """The guard died between its two links."""
    counter = Counter(tmp_path / "count")
    first = Request(op=mint(), argv=counting(counter))
    store.ask(first)
    os.unlink(store.marker(first.op))
    refused = store.ask(Request(op=mint(), argv=first.argv))
    assert refused.refusal == "unresolved_twin"
    assert store.ask(first).result["own"] == "1"


def test_between_result_and_ack_the_same_request_runs_once_it_is_acknowledged(store, tmp_path):
    counter = Counter(tmp_path / "count")
    first = Request(op=mint(), argv=counting(counter))
    channel = start(store, first)
    channel.read("end")
    channel.close()
    hello = store.ask(Request("hello", None, argv=first.argv)).get("hello")
    assert hello["twin"] == first.op


# --- store, horizon, witness


def test_the_store_has_one_identity_whoever_makes_it(store):
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda _: store.ask(Request("fence", mint())).get("hello")["store"], range(12)))
    assert len(set(found)) == 1
    assert found[0].startswith("st_")
    assert (store.base / "store").read_text() == f"sshop-store 1 {found[0]} ;\n"
    assert store.ask(Request("hello", None)).get("hello")["store"] == found[0]


def test_looking_makes_no_store(store):
    assert store.ask(Request("hello", None)).get("hello")["store"] == "-"
    assert store.ask(Request("inquire", mint())).get("state")["op"] == "absent"
    assert not list(store.root.glob("m-*"))


def test_another_store_or_past_is_refused(store, tmp_path):
    counter = Counter(tmp_path / "count")
    first = Request(op=mint(), argv=counting(counter))
    answer = store.ask(first, ack=True)
    mine, rec = answer.get("hello")["store"], answer.result["rec"]

    def ask(*control: str) -> object:
        return store.ask(
            Request(op=mint(), argv=counting(counter, "exit 3"), control=[c.encode() for c in control], new=True)
        )

    assert ask(f"S {mine}").result["status"] == "3"
    assert ask("S st_" + "0" * 32).refusal == "store_changed"
    assert ask(f"W {first.op}").result["status"] == "3"
    assert ask(f"W {mint()}").refusal == "rolled_back"
    assert ask(f"W {first.op}", f"W {mint()}").refusal == "rolled_back"
    assert ask("C 1 " + rec).refusal == "rolled_back"
    seen = Request(op=first.op, argv=first.argv, control=[b"C 1 " + rec.encode()])
    assert store.ask(seen).result["own"] == "0"
    seen.control = [b"C 1 rec_" + b"0" * 32]
    assert store.ask(seen).refusal == "rolled_back"
    assert counter.count == 3


def test_a_store_of_another_format_is_refused(store, tmp_path):
    counter = Counter(tmp_path / "count")
    store.ask(Request("fence", mint()))
    (store.base / "store").write_text("sshop-store 2 st_x ;\n")
    assert store.ask(Request(op=mint(), argv=counting(counter))).refusal == "bad_format"
    assert counter.count == 0


@pytest.mark.parametrize(
    ("time_", "overtaken"),
    [("01jzzzzzzz", True), ("01jzzzzzzy", True), ("00zzzzzzzz", True), ("01k0000000", False),
     ("01k00000az", False), ("7zzzzzzzzz", False), ("01jyzzzzzz", True)],
)  # fmt: skip
def test_an_id_that_is_not_newer_than_the_horizon_never_runs(store, tmp_path, time_, overtaken):
    counter = Counter(tmp_path / "count")
    store.ask(Request("fence", "made-it"))
    (store.base / "horizon").write_text(f"{mint('01jzzzzzzz')} ;\n")
    op = mint(time_)
    answer = store.ask(Request(op=op, argv=counting(counter)))
    if overtaken:
        assert answer.refusal == "expired"
        assert answer.get("no")["claim"] == "none"
        assert store.ask(Request("inquire", op)).get("state")["op"] == "expired"
    else:
        assert answer.result["own"] == "1"
    assert counter.count == (0 if overtaken else 1)
    assert store.ask(Request(op="brought.ID", argv=counting(counter), new=True)).result["own"] == "1"


def test_a_marker_older_than_the_horizon_still_answers(store, tmp_path):
    op = mint()
    request = Request(op=op, argv=[b"/bin/sh", b"-c", b"exit 4"])
    store.ask(request, ack=True)
    (store.base / "horizon").write_text(f"{mint('7zzzzzzzzz')} ;\n")
    assert store.ask(request).result["status"] == "4"
    witness = Request(op="b", argv=[b"true"], control=[b"W " + mint().encode()])
    assert store.ask(witness).result["status"] == "0"  # collected, and so not missed


# --- conditions and cancels


def test_a_condition_decides_before_and_after(store, tmp_path):
    flag = tmp_path / "flag"
    condition = [b"/bin/sh", b"-c", f"[ -e {flag} ]".encode()]

    def ask(script: str) -> object:
        argv = [b"/bin/sh", b"-c", script.encode()]
        return store.ask(Request(op=mint(), argv=argv, condition=condition, category="convergent"), ack=True).result

    result = ask("true")
    assert (result["status"], result["before"], result["after"], result["changed"]) == ("0", "1", "1", "1")
    result = ask(f"touch {flag}")
    assert (result["status"], result["before"], result["after"], result["changed"]) == ("0", "1", "0", "1")
    result = ask(f"rm {flag}")
    assert (result["status"], result["before"], result["after"], result["changed"]) == ("-", "0", "-", "0")
    assert flag.exists()


@pytest.mark.parametrize("script", ["exit 126", "exit 127", "kill -9 $$", "sleep 60"])
def test_a_condition_that_says_nothing_runs_nothing(store, tmp_path, script):
    counter = Counter(tmp_path / "count")
    op = mint()
    request = Request(
        op=op,
        argv=counting(counter),
        condition=[b"/bin/sh", b"-c", script.encode()],
        category="convergent",
        control=[b"L 1"],
    )
    answer = store.ask(request)
    assert answer.refusal == "condition_failed"
    assert answer.get("no")["claim"] == answer.get("claimed")["rec"]
    assert answer.get("no")["op"] == "never_started"
    assert store.ask(Request("inquire", op)).get("state")["op"] == "never_started"
    assert counter.count == 0


def test_cancel_ends_what_runs_and_says_so(store, tmp_path):
    op = mint()
    channel = start(store, Request(op=op, argv=[b"/bin/sh", b"-c", b"sleep 60; true"]))
    channel.read("started")
    leader(store, op)
    time.sleep(0.1)
    answer = store.ask(Request("cancel", op))
    assert answer.words[1] == "cancelling"
    assert answer.result["killed"] == "cancel"
    assert answer.result["status"] == "143"
    channel.read("end")
    assert channel.close().result["killed"] == "cancel"
    assert "killed by=cancel " in store.text(op)


def test_cancel_of_what_does_not_listen_kills(dash):
    op = mint()
    channel = start(dash, Request(op=op, argv=[b"/bin/sh", b"-c", b"trap '' TERM; sleep 60; sleep 60"]))
    channel.read("started")
    time.sleep(0.2)
    answer = dash.ask(Request("cancel", op, control=[b"P 1"]))
    assert answer.result["killed"] == "cancel"
    assert answer.result["status"] == "137"
    channel.close()


@pytest.mark.parametrize("own_group", [False, True])
def test_cancel_ends_what_outlived_its_supervisor(store, tmp_path, own_group):
    """As long as it lives the operation counts as running, and nobody else is there to end it or to record its end."""
    daemon = b"sleep 61"
    if own_group:
        daemon = b"python3 -c 'import os, time; os.setpgid(0, 0); time.sleep(61)'"
    op = mint()
    channel = start(store, Request(op=op, argv=[b"/bin/sh", b"-c", b"%b & sleep 0.5; kill -KILL $PPID" % daemon]))
    channel.read("end")
    channel.close()
    time.sleep(0.3)
    assert store.ask(Request("inquire", op, control=[b"P 0"])).get("hello")["op"] == "running"
    answer = store.ask(Request("cancel", op))
    assert answer.words[1] == "cancelling"
    assert answer.get("state")["op"] == "interrupted"
    assert store.ask(Request("fence", op)).get("fenced")["ran"] == "1"


def test_cancel_does_not_wait_for_ever_for_a_condition(dash):
    op = mint()
    request = Request(op=op, argv=[b"true"], condition=[b"sleep", b"60"], category="convergent", control=[b"L 50"])
    channel = start(dash, request)
    channel.read("claimed")
    begun = time.monotonic()
    assert dash.ask(Request("cancel", op)).words[-2:] == ["running", "end"]
    assert time.monotonic() - begun < 40
    kill_guard(channel)


def test_cancel_of_what_has_not_started_is_a_fence(store, tmp_path):
    op = mint()
    assert store.ask(Request("cancel", op)).words[-2] == "fenced"
    assert store.ask(Request(op=op, argv=[b"true"])).refusal == "fenced"


def test_cancel_while_the_condition_is_asked_stops_before_the_start(store, tmp_path):
    counter = Counter(tmp_path / "count")
    op = mint()
    request = Request(
        op=op, argv=counting(counter), condition=[b"/bin/sh", b"-c", b"sleep 2; exit 1"], category="convergent"
    )
    channel = start(store, request)
    channel.read("claimed")
    answer = store.ask(Request("cancel", op))
    assert answer.words[-2] == "fenced"
    channel.read("end")
    assert channel.close().refusal == "fenced"
    assert counter.count == 0
    assert (
        store.ask(Request(op=op, argv=request.argv, generation=(2, "first"), category="convergent")).refusal == "fenced"
    )


def test_a_fence_after_an_interruption_lets_no_further_run_come(store, tmp_path):
    op = mint()
    asked = interrupt(store, op, [b"sleep", b"60"])
    assert store.ask(Request("fence", op)).get("fenced")["gen"] == "2"
    assert store.ask(Request(op=op, argv=asked.argv, generation=(2, "decision"))).refusal == "fenced"
    assert store.ask(Request(op=op, argv=asked.argv, generation=(3, "decision"))).refusal == "fenced"


@pytest.mark.parametrize("interrupted", [True, False])
def test_a_fence_remembers_whether_anything_below_it_was_ever_started(store, interrupted):
    """Above what never started it proves that nothing ran, also to whoever lost its answer and looks later."""
    op = mint()
    condition = [b"/bin/sh", b"-c", b"exit 127"]
    asked = Request(op=op, argv=[b"sleep", b"60"], category="convergent", condition=condition)
    assert store.ask(asked).refusal == "condition_failed"
    if interrupted:
        interrupt(store, op, asked.argv, category="convergent", generation=(2, "first"))
    fenced = store.ask(Request("fence", op)).get("fenced")
    gen, ran = ("3", "1") if interrupted else ("2", "0")
    assert (fenced["gen"], fenced["ran"]) == (gen, ran)
    assert store.ask(Request("fence", op)).get("fenced")["ran"] == ran
    assert store.ask(Request("inquire", op)).get("state")["ran"] == ran
    late = Request(op=op, argv=asked.argv, category="convergent", generation=(4, "converges"))
    assert store.ask(late).get("no")["ran"] == ran


def test_what_a_killed_guard_left_is_swept_by_the_next(store, tmp_path):
    request = Request(op=mint(), argv=[b"cat"], stdin=b"S3CR3T")
    channel = store.open(request)
    channel.send(request.head())
    channel.read("hello")
    channel.send(b"b 6\nS3CR3T")
    channel.read("spooled")
    kill_guard(channel)
    assert list((store.base / "spool").glob("*.in"))
    store.ask(Request(op=mint(), argv=[b"true"]), ack=True)
    assert list((store.base / "spool").iterdir()) == []
