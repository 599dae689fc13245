"""Cut everywhere: the line fails at every step of a run and at two hundred bytes, in every way a line can fail.

After each: the state is honest, `replay` finishes it, there was one effect, the result is that of an undisturbed run,
the ledger verifies, and the same request under a fresh ID runs.
"""

import dataclasses
import inspect
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sshop.attempt import Trial
from sshop.conversation import Conversation
from sshop.core.operation import DispatchState, State
from sshop.logbook import Logbook
from sshop.ports import Limits
from sshop.transport import line as tcp
from sshop.transport import ssh
from sshop.transport.channel import GuardChannel
from tests.support.counter import Counter
from tests.support.process import send
from tests.support.program import Ended, Inside
from tests.support.relay import Relay
from tests.support.sample import sample
from tests.support.sshd import Sshd

# The first call gives up soon; those that follow have the time that a loaded machine needs.
IMPATIENT = Limits(connect=1.0, handshake=1.0, login=1.0, channel=1.0, dead_after=0.8)
PATIENT = Limits(dead_after=10.0)
EXIT = {"succeeded": 0, "unknown": 5, "not_sent": 8}


@dataclasses.dataclass(slots=True)
class Bench:
    """One account, one faulty line, one ledger, and what an undisturbed run looks like."""

    sshd: Sshd
    relay: Relay
    inside: Inside
    host: str
    user: str
    then: str = ":"
    expected: object = None
    bytes_up: int = 0
    bytes_down: int = 0
    counters: list[Counter] = dataclasses.field(default_factory=list)
    made: int = 0

    def counter(self) -> Counter:
        self.made += 1
        self.counters.append(Counter(self.sshd.home(self.user) / f"count-{self.made:04}"))
        return self.counters[-1]

    def words(self, counter: Counter) -> tuple[str, str, str]:
        return "add-input", f"path={counter.path}", f"then={self.then}"

    async def measure(self) -> None:
        """Two undisturbed runs: the first installs the guard, the second is the measure."""
        for _ in range(2):
            counter = self.counter()
            self.relay.reset_counters()
            ended = await self.inside.run(self.host, *self.words(counter))
            assert ended.code == 0
            assert counter.count == 1
        self.expected = ended.result
        self.bytes_up, self.bytes_down = self.relay.bytes_up, self.relay.bytes_down
        self.counters.clear()

    async def disturbed(self, counter: Counter) -> Ended:
        self.inside.limits = IMPATIENT
        try:
            return await self.inside.run(self.host, *self.words(counter), recover="none")
        finally:
            self.inside.limits = PATIENT

    def mend(self) -> None:
        """The line is good again; what was held on it arrives, or is lost with its connection."""
        self.relay.reset_counters()
        self.relay.resume()
        self.sshd.thaw_sessions()
        send([process for process in self.sshd.commands() if process.state == "T"], signal.SIGCONT)

    def wait_for_silence(self, limit_s: float = 10.0) -> None:
        """Return when nothing runs on the host any more, no guard that waits for the rest of a request either."""
        end = time.monotonic() + limit_s
        while self.sshd.sessions() or self.sshd.commands():
            assert time.monotonic() < end, (self.sshd.sessions(), self.sshd.commands())
            time.sleep(0.002)

    def markers(self, operation_id: str) -> list[Path]:
        return list(self.sshd.home(self.user).glob(f".sshop/m-*/markers/{operation_id}+*"))

    async def prove(self, disturb: Callable[[], object]) -> str:
        """What the first call was left with: `succeeded`, `unknown` or `not_sent`."""
        counter = self.counter()
        self.relay.reset_counters()
        disturb()
        first = await self.disturbed(counter)
        self.mend()
        kind = self.honest(first, counter)
        name = first.operation.operation_id
        if kind == "not_sent":
            self.wait_for_silence()
            assert counter.count == 0
            assert not self.markers(name)
        if kind != "succeeded":
            replayed = await self.inside.replay(name)
            assert replayed.code == 0, replayed.json
            assert replayed.operation.state == State.SUCCEEDED
            assert replayed.result == self.expected
        assert counter.count == 1
        self.inside.verify()
        fresh = await self.inside.run(self.host, *self.words(counter))
        assert fresh.code == 0, fresh.json
        assert fresh.operation.operation_id != name
        assert fresh.result == self.expected
        assert counter.count == 2
        self.inside.verify()
        return kind

    def honest(self, first: Ended, counter: Counter) -> str:
        operation = first.operation
        attempt = operation.latest
        assert attempt is not None
        if operation.state == State.SUCCEEDED:
            assert first.result == self.expected
            assert counter.count == 1
            kind = "succeeded"
        elif operation.dispatched:
            assert operation.state == State.UNKNOWN
            assert attempt.dispatch_state == DispatchState.SENT_NO_RESPONSE
            assert operation.result is None
            assert first.json["exit_status"] is None
            kind = "unknown"
        else:
            assert operation.state == State.OPEN
            assert attempt.dispatch_state == DispatchState.NOT_SENT
            assert counter.count == 0
            kind = "not_sent"
        assert first.code == EXIT[kind], first.json
        return kind

    def close(self) -> None:
        """Nothing that was delayed on the way adds an effect later."""
        self.inside.close()
        self.wait_for_silence()
        assert [counter.count for counter in self.counters] == [2] * len(self.counters)


@pytest.fixture
def bench(sshd: Sshd, relay: Relay, tmp_path: Path) -> Iterator[Bench]:
    user = sshd.user
    inside = Inside(tmp_path, sshd.write_ssh_config(relay.port), limits=PATIENT)
    made = Bench(sshd, relay, inside, sshd.accounts[user].alias, user)
    yield made
    inside.close()


# -- at bytes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["rst", "fin", "half_close", "stall"])
@pytest.mark.parametrize("direction", ["up", "down"])
async def test_cut_at_a_byte(bench: Bench, direction: str, action: str):
    """A hundred positions in this direction, the first byte and the last among them."""
    await bench.measure()
    total = bench.bytes_up if direction == "up" else bench.bytes_down
    positions = [round(index * total / 99) for index in range(100)]
    kinds: dict[str, int] = {}
    for position in sample(positions, 3 if action == "stall" else 8, salt=f"{direction} {action}"):
        try:
            kind = await bench.prove(lambda at=position: bench.relay.arm(at=at, direction=direction, action=action))
        except AssertionError as error:
            error.add_note(f"{action} {direction} at byte {position} of {total}")
            raise
        kinds[kind] = kinds.get(kind, 0) + 1
    print(f"{action} {direction}: {kinds}")
    bench.close()


async def test_a_run_that_may_recover_does_so_by_itself(bench: Bench):
    """The same without `--recover none`: fifty positions, and no second call is needed."""
    await bench.measure()
    points = [("up", round(n * bench.bytes_up / 24)) for n in range(25)]
    points += [("down", round(n * bench.bytes_down / 24)) for n in range(25)]
    for direction, position in sample(points, 4, salt="auto"):
        counter = bench.counter()
        bench.relay.reset_counters()
        bench.relay.arm(at=position, direction=direction, action="rst")
        ended = await bench.inside.run(bench.host, *bench.words(counter), tries=4)
        where = f"{direction} at byte {position}"
        assert ended.code == 0, (where, ended.json)
        assert ended.result == bench.expected, where
        assert counter.count == 1, where
        bench.inside.verify()
        fresh = await bench.inside.run(bench.host, *bench.words(counter))
        assert fresh.code == 0, (where, fresh.json)
    bench.close()


async def test_cut_again_and_again(bench: Bench):
    """The call that replays is cut too, and the next: each time the state is honest, and at last it is one effect."""
    await bench.measure()
    for number in sample(range(60), 4, salt="again"):
        chance = random.Random(f"cut again {number}")
        counter = bench.counter()
        name = f"again-{number}"
        cuts = []
        for call in range(3):
            direction = chance.choice(["up", "down"])
            total = bench.bytes_up if direction == "up" else bench.bytes_down
            cuts.append((direction, chance.randrange(total * 2 // 3, total)))
            bench.relay.reset_counters()
            bench.relay.arm(at=cuts[-1][1], direction=direction, action=chance.choice(["rst", "fin", "half_close"]))
            bench.inside.limits = IMPATIENT
            if call == 0:
                ended = await bench.inside.run(bench.host, *bench.words(counter), op=name, recover="none")
            else:
                ended = await bench.inside.replay(name, tries=1)
            assert counter.count <= 1, cuts
            if ended.operation.state == State.SUCCEEDED:
                assert counter.count == 1, cuts
            else:
                assert ended.operation.state in (State.OPEN, State.UNKNOWN), cuts
                assert ended.operation.result is None, cuts
        bench.relay.reset_counters()
        bench.inside.limits = PATIENT
        final = await bench.inside.run(bench.host, *bench.words(counter), op=name, tries=3)
        assert final.code == 0, (cuts, final.json)
        assert final.result == bench.expected, cuts
        assert counter.count == 1, cuts
        bench.inside.verify()
        fresh = await bench.inside.run(bench.host, *bench.words(counter))
        assert fresh.code == 0, (cuts, fresh.json)
    bench.close()


@pytest.mark.parametrize("action", ["rst", "stall"])
async def test_cut_while_the_guard_is_installed(bench: Bench, tmp_path: Path, action: str):
    """The same on the first contact with a host, most of whose bytes are the guard's own."""
    counter = bench.counter()
    ended = await bench.inside.run(bench.host, *bench.words(counter))
    bench.expected, total = ended.result, bench.relay.bytes_up
    positions = [round(index * total / 31) for index in range(1, 31)]
    for position in sample(positions, 3, salt=action):
        bench.wait_for_silence()
        bench.sshd.reset()
        bench.counters.clear()
        # a host whose store is gone is another host: it is met by a ledger of its own
        bench.inside = Inside(tmp_path / str(position), bench.sshd.write_ssh_config(bench.relay.port), limits=PATIENT)
        await bench.prove(lambda at=position: bench.relay.arm(at=at, direction="up", action=action))
        bench.close()


# -- at steps ----------------------------------------------------------------------------------------------------------

BEFORE, AFTER = "before", "after"


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """A call of the product, before or after which the line fails; the `nth` of those for which `when` holds."""

    name: str
    place: object
    method: str
    side: str
    nth: int = 1
    when: Callable[..., bool] = lambda *_: True

    def __str__(self) -> str:
        return f"{self.side} {self.name}"


def _both(name: str, place: object, method: str, **more) -> list[Step]:
    return [Step(name, place, method, side, **more) for side in (BEFORE, AFTER)]


def _word(word: str) -> Callable[..., bool]:
    return lambda _self, batch: any(frame.word == word for frame in batch)


STEPS = [
    *_both("connect", tcp, "open_tcp"),
    *_both("key exchange", ssh._Login, "validate_host_public_key"),
    *_both("login", ssh._Login, "public_key_auth_requested"),
    Step("login is done", ssh._Login, "auth_completed", AFTER),
    *_both("channel open", ssh.SshConnection, "open_guard"),
    *_both("head sent", GuardChannel, "send"),
    Step("hello received", Conversation, "begin", AFTER),
    *_both("length of input sent", GuardChannel, "send", nth=2),
    *_both("input sent", GuardChannel, "send", nth=3),
    Step("input spooled", Conversation, "spool", AFTER),
    *_both("dispatched", Logbook, "dispatch"),
    *_both("go", Conversation, "go"),
    *_both("claimed seen", Trial, "_see", when=_word("claimed")),
    *_both("started seen", Trial, "_see", when=_word("started")),
    *_both("result seen", Trial, "_see", when=_word("result")),
    *_both("result recorded", Logbook, "ended"),
    *_both("ack", Conversation, "acknowledge"),
]

# Where the runner still waits for a word of the host before it dispatches, it cannot but notice. Later it may dispatch
# into a dead line, and then it does not know.
NAMES = [str(step) for step in STEPS]
SURE_NOT_SENT = NAMES[: NAMES.index("after input spooled")]
SURE_UNKNOWN = NAMES[NAMES.index("after dispatched") : NAMES.index("after go")]
SURE_SUCCEEDED = NAMES[NAMES.index("after result recorded") :]


def hook(monkeypatch: pytest.MonkeyPatch, step: Step, cut: Callable[[], object]) -> list[bool]:
    """Call `cut` once, where the step says; whether it was called is in the list."""
    original = getattr(step.place, step.method)
    seen, done = [0], []

    def due(*arguments) -> bool:
        if done or not step.when(*arguments):
            return False
        seen[0] += 1
        return seen[0] == step.nth

    def fire() -> None:
        done.append(True)
        cut()

    async def waiting(*arguments, **more):
        now = due(*arguments)
        if now and step.side == BEFORE:
            fire()
        value = await original(*arguments, **more)
        if now and step.side == AFTER:
            fire()
        return value

    def direct(*arguments, **more):
        now = due(*arguments)
        if now and step.side == BEFORE:
            fire()
        value = original(*arguments, **more)
        if now and step.side == AFTER:
            fire()
        return value

    monkeypatch.setattr(step.place, step.method, waiting if inspect.iscoroutinefunction(original) else direct)
    return done


def cutter(bench: Bench, how: str, step: Step) -> Callable[[], object]:
    if step.name == "connect" and how not in ("kill", "freeze"):  # the first byte is the last
        return lambda: bench.relay.arm(at=0, direction="up", action=how)
    if str(step) == "before connect":
        return lambda: bench.relay.arm(at=0, direction="up", action="rst")

    def kill() -> None:
        while not bench.sshd.kill_sessions():
            time.sleep(0.001)

    def freeze() -> None:
        # the server may be forking: until there is none left that is awake
        while not bench.sshd.freeze_sessions() or any(process.state != "T" for process in bench.sshd.sessions()):
            time.sleep(0.001)

    return {
        "rst": bench.relay.cut_now,
        "fin": lambda: bench.relay.cut_now(reset=False),
        "half_close": lambda: bench.relay.arm(at=0, direction="up", action="half_close"),
        "stall": bench.relay.stall,
        "kill": kill,
        "freeze": freeze,
    }[how]


@pytest.mark.parametrize("how", ["rst", "fin", "half_close", "stall", "kill", "freeze"])
async def test_cut_at_a_step(bench: Bench, monkeypatch: pytest.MonkeyPatch, how: str):
    bench.then = "sleep 0.05"
    await bench.measure()
    kinds: dict[str, int] = {}
    for step in sample(STEPS, 6, salt=how):
        with monkeypatch.context() as patch:
            fired = hook(patch, step, cutter(bench, how, step))
            try:
                kind = await bench.prove(lambda: None)
            except AssertionError as error:
                error.add_note(f"{how} {step}")
                raise
        assert fired, f"{step} was never reached"
        if how == "half_close" and str(step) == "after input sent":
            assert kind in ("not_sent", "unknown")  # the next byte up is what closes, and that may be of `go`
        elif str(step) in SURE_NOT_SENT:
            assert kind == "not_sent", str(step)
        elif str(step) in SURE_UNKNOWN:
            assert kind == "unknown", str(step)
        elif str(step) in SURE_SUCCEEDED:
            assert kind == "succeeded", str(step)
        else:
            assert kind in ("unknown", "succeeded", "not_sent")
        kinds[kind] = kinds.get(kind, 0) + 1
    print(f"{how}: {kinds}")
    bench.close()
