"""Fakes of the ports for tests of the runner's logic: a clock, IDs, processes, and a transport to simulated hosts.

`Host` is the far side: it reads the bytes of docs/PROTOCOL.md and answers them, on a store in memory. What is to go
wrong in a run, and where, is a `Plan`; the plans are used one by one.
"""

import asyncio
import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sshop import errors
from sshop.core.identity import is_minted, minted_at
from sshop.core.identity import mint as mint_id
from sshop.core.operation import Account
from sshop.core.value import replace
from sshop.ledger.sqlite import SqliteLedger
from sshop.ports import Ledger, Limits, Process
from sshop.world import World

ACCOUNT = Account("web", "deploy", "web.example", 22)
STARTED = 1_800_000_000_000


class FakeClock:
    """Time passes only where somebody sleeps, a microsecond for each look at it."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.sleeps: list[float] = []
        self.on_sleep: Callable[[], None] | None = None

    def now(self) -> str:
        self.passed += 0.000001
        seconds, micros = divmod(round(self.passed * 1_000_000), 1_000_000)
        return f"2026-01-01T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros:06}Z"

    def milliseconds(self) -> int:
        return STARTED + int(self.passed * 1000)

    def monotonic(self) -> float:
        return self.passed

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.passed += seconds
        if self.on_sleep is not None:
            self.on_sleep()
        await asyncio.sleep(0)


class FakeIds:
    def __init__(self, clock: FakeClock, seed: str = "") -> None:
        self._clock, self._seed, self._count = clock, seed, 0

    def _next(self) -> bytes:
        self._count += 1
        return hashlib.sha256(f"{self._seed}{self._count}".encode()).digest()

    def mint(self, prefix: str) -> str:
        entropy = self._next()
        return mint_id(prefix, self._clock.milliseconds() + self._count, entropy[:10])

    def nonce(self) -> str:
        return self._next()[:16].hex()

    def jitter(self) -> float:
        return 0.5


class FakeProcesses:
    """`dead` are the pids that are gone; all others live."""

    def __init__(self) -> None:
        self.dead: set[int] = set()

    def alive(self, pid: int, start: str, machine: str) -> bool | None:
        return pid not in self.dead


class FailingLedger:
    """A ledger whose disk goes at the first append that holds an event of a type in `fails_at`, and stays away."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.fails_at: set[str] = set()
        self.gone = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def append(self, decide: Any) -> Any:
        def decided(view: Any) -> Any:
            drafts = list(decide(view))
            self.gone = self.gone or any(draft.body.type in self.fails_at for draft in drafts)
            if self.gone:
                raise errors.LedgerFull
            return drafts

        return self._ledger.append(decided)


@dataclasses.dataclass
class Plan:
    """What happens to one run on the host.

    `end`: what becomes of a claim: `exits`, `runs`, `interrupted`, `never_started` or `unreadable`. `cut`: after which
    word the connection is lost (`head` and `go` are words of the runner; `lost_go` never arrives); `hang`: after which
    word nothing more is said. `deny`: the code of a refusal after `go`, with `deny_fields`.
    """

    end: str = "exits"
    status: int = 0
    after: int | None = 0
    cut: str | None = None
    hang: str | None = None
    deny: str | None = None
    deny_fields: str = ""
    connect: Exception | None = None
    lines: Sequence[str] | None = None


@dataclasses.dataclass
class Marker:
    gen: int
    rec: str
    att: str
    fp: str
    state: str
    status: int | None = None
    changed: int | None = 1
    before: int | None = None
    after: int | None = None
    out: bytes = b""
    acked: bool = False


class Host:
    """One account on one host."""

    def __init__(self) -> None:
        self.store, self.format, self.machine, self.boot, self.grade = "st_1", "1", "m-1", "b-1", "file_synced"
        self.horizon: str | None = None
        self.markers: dict[str, list[Marker]] = {}
        self.index: dict[str, str] = {}
        self.effects: list[str] = []
        self.condition = 1
        self.probe_cut = False
        self.plans: list[Plan] = []
        self.asked: list[str] = []
        self.connections = 0
        self.question_faults: list[Exception] = []
        self.open: list[FakeChannel] = []
        self.overlook_claims = False

    # -- ports ----

    def resolve(self, host: str) -> Account:
        return replace(ACCOUNT, host=host)

    async def connect(self, account: Account, limits: Limits) -> "FakeConnection":
        self.connections += 1
        if self.plans and self.plans[0].connect is not None:
            raise self.plans.pop(0).connect  # type: ignore[misc]
        if self.plans and self.plans[0].hang == "connect":
            self.plans.pop(0)
            await asyncio.Event().wait()
        return FakeConnection(self)

    # -- what a guard does ----

    def ran(self, name: str) -> str:
        """What a fence that stands remembers of the generations below it."""
        *below, newest = self.markers.get(name) or [None]
        if newest is None or newest.state != "fenced":
            return "-"
        return "0" if all(marker.state == "never_started" for marker in below) else "1"

    def newest(self, name: str) -> Marker | None:
        found = self.markers.get(name)
        return found[-1] if found else None

    def state(self, name: str) -> str:
        marker = self.newest(name)
        if marker is not None:
            return marker.state
        return "expired" if self._too_old(name) else "absent"

    def _too_old(self, name: str) -> bool:
        return self.horizon is not None and is_minted(name) and minted_at(name) <= minted_at(self.horizon)

    def finish(self, name: str, status: int = 0) -> None:
        """A command that runs ends."""
        marker = self.newest(name)
        assert marker is not None
        marker.state, marker.status, marker.out = "exited", status, b"done\n"
        for channel in self.open:
            channel.wake(name)


class FakeConnection:
    host_key = "SHA256:fake"
    authority_ref = "publickey SHA256:mine"

    def __init__(self, host: Host) -> None:
        self._host = host
        self.lost = False

    async def open_guard(self, guard: bytes, root: str, *, install: bool = False) -> "FakeChannel":
        if self.lost:
            raise errors.LinkLost("it was cut")
        channel = FakeChannel(self._host, self)
        self._host.open.append(channel)
        return channel

    async def close(self) -> None:
        self.lost = True

    def abort(self) -> None:
        self.lost = True


class FakeChannel:
    """The guard's end of a channel, fed with bytes."""

    def __init__(self, host: Host, connection: FakeConnection) -> None:
        self._host, self._connection = host, connection
        self._buffer, self._lines = b"", 0
        self._head: dict[str, str] = {}
        self._frames, self._plain, self._spooling = b"", True, -1
        self._verb, self._nonce = "", ""
        self._plan = Plan()
        self._said: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self._silent = self._closed = self._begun = self._listening = False
        self._waits_for: str | None = None

    async def send(self, data: bytes) -> None:
        if self._connection.lost:
            raise errors.LinkLost("it was cut")
        self._buffer += data
        while self._buffer and not self._closed:
            if self._spooling >= 0:
                if len(self._buffer) < self._spooling:
                    break
                self._buffer, self._spooling = self._buffer[self._spooling :], -1
                self._say("spooled bytes=0")
                continue
            line, newline, rest = self._buffer.partition(b"\n")
            if not newline:
                break
            self._buffer = rest
            self._take(line)
        await asyncio.sleep(0)

    async def receive(self) -> bytes:
        if self._closed and self._said.empty():
            return b""
        item = await self._said.get()
        if isinstance(item, Exception):
            self._connection.lost = True
            raise item
        return item

    def noise(self) -> bytes:
        return b""

    async def close(self) -> None:
        self._closed = True

    # -- the guard ----

    def _say(self, text: str, data: bytes = b"") -> None:
        if self._silent:
            return
        self._said.put_nowait(f"\nsshop1 {self._nonce} {text}\n".encode() + data)
        self._went(text.split(" ", maxsplit=1)[0])

    def _went(self, word: str) -> None:
        if self._plan.cut == word:
            self._silent = True
            self._said.put_nowait(errors.LinkLost(f"cut after {word}"))
        elif self._plan.hang == word:
            self._silent = True

    def _take(self, line: bytes) -> None:
        text = line.decode("utf-8", "surrogateescape")
        if self._listening:
            if text == "ack":
                self._ack(self._host.newest(self._head["I"]))
            return
        if not self._begun:
            _, self._nonce, self._verb = text.split(" ")
            self._begun, self._lines = True, 1
            self._host.asked.append(self._verb)
            if self._verb == "run":
                self._plan = self._host.plans.pop(0) if self._host.plans else Plan()
            elif self._host.question_faults:
                self._said.put_nowait(self._host.question_faults.pop(0))
                self._silent = True
            return
        if text.startswith("go "):
            assert int(text[3:]) == self._lines, "the count of lines"
            if self._plan.cut == "lost_go":
                self._went("lost_go")
                return
            self._went("go")
            self._act()
            return
        self._lines += 1
        if text == "?":
            self._went("head")
            self._hello()
        elif text.startswith("b "):
            self._spooling = int(text[2:])
        elif line[:1] in b"adeslih+uz":
            self._frames += line + b"\n" if self._plain else b""
        elif line[:1] in (b"c", b"x"):
            self._plain = False
            if line[:1] == b"c":
                self._head["c"] = text[2:]
        elif line[:1] != b".":
            self._head[text[0]] = text[2:]

    def _hello(self) -> None:
        host, name = self._host, self._head.get("I", "-")
        marker, twin = host.newest(name), host.index.get(self._head.get("F", ""), "-")
        twin = "-" if twin == name else twin
        witness = "-"
        for word in self._head.get("W", "").split():
            witness = "ok" if word in host.markers or host._too_old(word) else "gone"
        self._say(
            f"hello store={host.store} format={host.format} machine={host.machine} boot={host.boot} grade={host.grade} "
            f"horizon={host.horizon or '-'} digest=sha256 up=1 op={host.state(name)} gen={marker.gen if marker else 0} "
            f"rec={marker.rec if marker else '-'} att={marker.att if marker else '-'} twin={twin} "
            f"twinop={host.state(twin)} witness={witness} user=deploy"
        )

    def _no(self, code: str, fields: str = "") -> None:
        host, name = self._host, self._head["I"]
        marker = host.newest(name)
        fields = fields or (
            f"claim=none op={host.state(name)} gen={marker.gen if marker else 0} "
            f"rec={marker.rec if marker else '-'} ran={host.ran(name)} "
            f"twin={host.index.get(self._head.get('F', ''), '-')}"
        )
        self._say(f"no {code} {fields} msg=because")
        self._say("end")

    def _act(self) -> None:
        host, head = self._host, self._head
        if self._verb != "probe" and not self._kept():
            return
        match self._verb:
            case "run" if head["K"] == "read_only":
                self._run_free()
            case "run":
                self._run()
            case "probe":
                if host.probe_cut:
                    self._said.put_nowait(errors.LinkLost("cut in a probe"))
                    return
                self._say(f"result gen=0 rec=- att=- own=1 status={host.condition} changed=- killed=- out=0 err=0")
                self._say("end")
            case "ack":
                marker = host.newest(head["I"])
                self._ack(marker) if marker else self._no("no_record")
                self._say("end")
            case "fence" | "cancel":
                self._fence()
            case _:
                self._inquire()

    def _kept(self) -> bool:
        host, head = self._host, self._head
        if head.get("S", host.store) != host.store:
            self._no("store_changed")
            return False
        if "C" in head:
            generation, record = head["C"].split()
            held = host.markers.get(head["I"], [])
            if not any(m.gen == int(generation) and m.rec == record for m in held):
                self._no("rolled_back")
                return False
        return True

    def _ack(self, marker: Marker | None) -> None:
        assert marker is not None
        marker.acked = True
        if self._host.index.get(marker.fp) == self._head["I"]:
            del self._host.index[marker.fp]
        self._say(f"acked rec={marker.rec}")

    def _run_free(self) -> None:
        plan, name = self._plan, self._head["I"]
        if plan.lines is not None:
            self._scripted()
            return
        self._host.effects.append(name)
        self._say(f"result gen=0 rec=- att={self._head['T']} own=1 status={plan.status} changed=- killed=- out=0 err=0")
        self._say("end")

    def _scripted(self) -> None:
        for line in self._plan.lines or ():
            self._say(line)

    def _run(self) -> None:
        host, head, plan, name = self._host, self._head, self._plan, self._head["I"]
        fingerprint = hashlib.sha256(self._frames).hexdigest()
        assert fingerprint == head["F"], "the plain fingerprint"
        if plan.lines is not None:
            self._scripted()
            return
        if plan.deny is not None:
            self._no(plan.deny, plan.deny_fields)
            return
        newest, state = host.newest(name), host.state(name)
        if newest is not None and state not in ("fenced", "expired", "unreadable") and newest.fp != fingerprint:
            self._no("key_conflict")
            return
        most, ground = head["G"].split()
        following = (newest.gen if newest else 0) + 1
        converges = ground == "converges" and head["K"] == "convergent"
        free = state in ("absent", "never_started") or (state == "interrupted" and converges)
        free = free or (state == "exited" and converges and newest is not None and newest.status not in (0, None))
        if int(most) < following or not free:
            if state in ("expired", "fenced", "interrupted", "unreadable"):
                self._no(state)
                return
            self._stored(patience=None)
            return
        twin = host.index.get(fingerprint, name)
        if "N" not in head and twin != name:
            self._no("unresolved_twin")
            return
        host.index.setdefault(fingerprint, name)
        marker = Marker(following, f"rec_{self._nonce}", head["T"], fingerprint, "running")
        host.markers.setdefault(name, []).append(marker)
        self._say(f"claimed gen={marker.gen} rec={marker.rec} sync={host.grade}")
        if plan.end in ("never_started", "unreadable"):
            marker.state = plan.end
            self._went("claim")
            self._said.put_nowait(errors.LinkLost("the guard is gone"))
            return
        if "c" in head:
            marker.before = host.condition
            if host.condition == 0:
                marker.state, marker.changed = "exited", 0
                self._stored(own=1)
                return
        self._say(f"started gen={marker.gen} rec={marker.rec}")
        host.effects.append(name)
        if plan.end == "interrupted":
            marker.state = "interrupted"
            self._said.put_nowait(errors.LinkLost("the guard is gone"))
            return
        if plan.end == "runs":
            self._waits_for = name
            return
        marker.state, marker.status, marker.out = "exited", plan.status, b"done\n"
        if "c" in head:
            marker.after = plan.after
            if plan.after == 0:
                host.condition = 0
        self._stored(own=1)

    def wake(self, name: str) -> None:
        if self._waits_for == name:
            self._waits_for = None
            marker = self._host.newest(name)
            assert marker is not None
            self._stored(own=int(marker.att == self._head.get("T")))

    def _stored(self, *, own: int = 0, patience: str | None = None) -> None:
        name = self._head["I"]
        marker = self._host.newest(name)
        state = self._host.state(name)
        if marker is not None and state == "exited":
            dash = {None: "-"}
            status, before, after = (dash.get(v, v) for v in (marker.status, marker.before, marker.after))  # type: ignore[call-overload]
            self._say(
                f"result gen={marker.gen} rec={marker.rec} att={marker.att} own={own} status={status} "
                f"changed={marker.changed} killed=- before={before} after={after} limit=enforced ms=1 "
                f"out={len(marker.out)} outsha={hashlib.sha256(marker.out).hexdigest()} err=0 errsha=- "
                f"sync={self._host.grade} fp={marker.fp}"
            )
            if marker.out:
                self._say(f"data stream=out offset=0 bytes={len(marker.out)}", marker.out)
            self._listening = own == 1
        elif marker is not None and state == "running":
            self._say(f"running gen={marker.gen} rec={marker.rec} att={marker.att}")
            if patience != "0":
                self._waits_for = name
                return
        else:
            where = (
                f"gen={marker.gen} rec={marker.rec} att={marker.att} fp={marker.fp}" if marker else "gen=0 rec=- att=-"
            ) + f" ran={self._host.ran(name)}"
            self._say(f"state op={state} {where} msg=it is {state}")
        self._say("end")

    def _inquire(self) -> None:
        self._stored(patience=self._head.get("P"))

    def _fence(self) -> None:
        host, name = self._host, self._head["I"]
        state, newest = host.state(name), host.newest(name)
        if state in ("absent", "never_started", "interrupted"):
            generation = (newest.gen if newest else 0) + 1
            newest = Marker(generation, f"rec_{self._nonce}", "-", self._head.get("F", ""), "fenced")
            host.markers.setdefault(name, []).append(newest)
            state = "fenced"
        if state == "fenced":
            assert newest is not None
            self._say(f"fenced gen={newest.gen} rec={newest.rec} ran={host.ran(name)}")
            self._say("end")
            return
        self._stored(patience="0")


@dataclasses.dataclass
class Bench:
    """A world of fakes on one simulated host, with a real ledger in `folder`."""

    folder: Path
    session: str = "ses_one"
    pid: int = 100
    ledger_name: str = "ledger.sqlite"
    host: Host = dataclasses.field(default_factory=Host)
    clock: FakeClock = dataclasses.field(default_factory=FakeClock)
    processes: FakeProcesses = dataclasses.field(default_factory=FakeProcesses)

    def __post_init__(self) -> None:
        self.ledger = FailingLedger(SqliteLedger.open(str(self.folder / self.ledger_name)))
        me = Process(self.session, None, self.pid, "1", self.pid + 1, "1", "here", "me")
        ids = FakeIds(self.clock, f"{self.session}{self.pid}")
        self.world = World(self.ledger, self.host, self.clock, ids, self.processes, me, b"", Limits())

    def line(self) -> Any:
        return self.world.line(ACCOUNT, "~/.sshop")

    def close(self) -> None:
        self.ledger.close()
