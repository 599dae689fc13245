"""A synthetic history for an empty ledger: valid, of all outcomes, the same for the same seed.

For benchmarks and for looking at pages. Nothing in it happened: the hosts are under `.invalid`, the session's agent is
`synthetic`, and the times begin at a fixed day.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from sshop import errors
from sshop.core import command as commands
from sshop.core import events, lifecycle
from sshop.core.events import AnyBody, Draft
from sshop.core.identity import mint
from sshop.core.operation import Account, Boundary, DispatchState, Result, State, Terms
from sshop.ports import Ledger, LedgerView

GROUP = 2000
HOSTS = 40
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_SESSION_EVERY = 50

# category, effects, name, argv with `{}` for what differs, and the subject it touches
Work = tuple[str, list[str], str, str, str | None]
WORK: tuple[Work, ...] = (
    ("read_only", [], "disk-usage", "df --output=pcent /srv/{}", None),
    ("convergent", [], "user-present", "useradd --create-home {}", "account:{}"),
    ("convergent", ["service_restart"], "package-present", "apt-get install -y {}", "package:{}"),
    ("append_only", ["credential"], "append-authorized-key", "append-key {}", "account:{}"),
    ("append_only", ["notification"], "page-on-call", "page {}", None),
    ("destructive", ["data_loss"], "drop-database", "dropdb {}", "database:{}"),
)


class Story:
    """One operation being told: every step yields the drafts of one event or more."""

    def __init__(self, world: Synthesis, work: Work, operation_id: str | None = None) -> None:
        self._world = world
        self.drafts: list[Draft] = []
        category, effects, name, line, subject = work
        self.category = category
        self._operation = operation_id or world.mint("op")
        self._account = world.account()
        thing = f"{name[:4]}{world.random.randrange(1 << 40):010x}"
        argv = [word.replace("{}", thing) for word in line.split()]
        command = commands.Command(tuple(commands.text(word) for word in argv))
        self._fingerprint = commands.fingerprint(command)
        self._store = world.store_of(self._account)
        self._attempt = ""
        self._number = 0
        self._record = world.mint("rec")
        owner = world.session
        self.tell(
            events.IntentCreated(
                account=self._account.to_json(), kind="catalogue", name=name, summary=" ".join(argv),
                subject_ref=subject.replace("{}", thing) if subject else None, category=category, effects=effects,
                command=commands.to_json(command), fingerprint=self._fingerprint, secret_fingerprint=None,
                secret_key_id=None, budget=3, note=None, policy_digest=world.policy, policy_commit=None, new=False,
                owner=owner, owner_pid=world.pid, owner_pid_start="1", owner_machine="synthetic",
                contract=lifecycle.contract_at_birth(declared=False), terms=Terms().to_json(),
            )
        )  # fmt: skip

    def tell(self, body: AnyBody, *, attempt: bool = False) -> None:
        self.drafts.append(self._world.draft(body, self._operation, self._attempt if attempt else None))

    def open(self, reason: str | None = None, decision: str | None = None) -> None:
        parent = self._attempt or None
        if parent is not None and reason is not None and decision is not None:
            self.tell(events.RetryDecided(parent, reason, decision, 3 - self._number, "the table allows it"))
        self._attempt = self._world.mint("att")
        self._number += 1
        self.tell(
            events.AttemptOpened(
                number=self._number, pid=self._world.pid, pid_start="1", machine="synthetic",
                retry_of_attempt_id=parent, retry_reason=reason, retry_decision=decision,
                budget_remaining=3 - self._number, fingerprint=self._fingerprint,
                prior_fingerprint=self._fingerprint if parent else None, secret_fingerprint=None, authority_ref=None,
                policy_digest=self._world.policy,
            ),
            attempt=True,
        )  # fmt: skip

    def dispatch(self, ground: str = "first") -> None:
        body = events.AttemptDispatched(
            1, ground, self._store, "SHA256:synthetic", "boot", "publickey SHA256:synthetic"
        )
        self.tell(body, attempt=True)

    def see(self, boundary: Boundary) -> None:
        record = None if self.category == "read_only" else self._record
        body = events.BoundarySeen(
            boundary, "host", 1, record, "file_synced", "SHA256:synthetic", self._store, self._account.key, None, "boot"
        )
        self.tell(body, attempt=True)

    def lose(self, boundary: Boundary = Boundary.REQUEST_SENT) -> None:
        self.tell(events.ResponseLost(boundary, "connection reset"), attempt=True)
        self.close(DispatchState.SENT_NO_RESPONSE, boundary, "link.lost")

    def close(self, state: DispatchState, boundary: Boundary, code: str | None = None) -> None:
        seen_by = None if boundary == Boundary.NONE else "runner" if boundary == Boundary.REQUEST_SENT else "host"
        self.tell(events.AttemptClosed(state, boundary, seen_by, False, code, None), attempt=True)

    def result(self, status: int | None, *, changed: bool | None = None) -> dict[str, Any]:
        noise = self._world.random.randrange(100_000)
        digest = hashlib.sha256(b"%d" % noise).hexdigest()
        record = None if self.category == "read_only" else self._record
        return Result(
            record, 1, status, changed, milliseconds=noise % 9000, stdout_bytes=noise, stdout_sha256=digest,
            stderr_sha256=hashlib.sha256(b"").hexdigest(), sync="file_synced", by_attempt=self._attempt,
        ).to_json()  # fmt: skip

    def answer(self, status: int | None, *, changed: bool | None = None, own: bool = True) -> None:
        self.see(Boundary.EXIT_STATUS_RECEIVED)
        result = self.result(status, changed=changed)
        record = result["record_id"]
        self.tell(events.ResponseReceived("result", None, "exited", 1, record, own, result, None), attempt=True)
        self.close(DispatchState.RESPONSE_RECEIVED, Boundary.EXIT_STATUS_RECEIVED)
        good = status in (0, None)
        self.resolve(State.SUCCEEDED if good else State.FAILED, "result", f"exit status {status}", record)
        if record is not None:
            self.tell(events.OperationAcknowledged(record))

    def look(self, host_state: str, *, changed: bool, kind: str = "inquire") -> str:
        observation = self._world.mint("obs")
        query = hashlib.sha256(f"{kind} {self._operation}".encode()).hexdigest()
        record = self._record if host_state == "exited" else None
        body = events.LookupPerformed(
            observation, kind, query, self._account.key, self._store, "operation ID and plain fingerprint", host_state,
            1, record, changed, f"the marker is {host_state}",
        )  # fmt: skip
        self.tell(body)
        return observation

    def resolve(self, state: State, by: str, why: str, record: str | None, observation: str | None = None) -> None:
        self.tell(events.OperationResolved(state, by, record, 1, observation, "not_declared", why))

    def find(self, status: int) -> None:
        observation = self.look("exited", changed=True)
        result = self.result(status)
        self.tell(events.RemoteRecordFound(observation, 1, self._record, self._attempt, result))
        state = State.FAILED if status else State.SUCCEEDED
        self.resolve(state, "result", f"exit status {status}", self._record, observation)
        self.tell(events.OperationAcknowledged(self._record))


def _run(story: Story) -> None:
    story.open()
    story.dispatch()
    if story.category != "read_only":
        story.see(Boundary.CLAIMED)


def _succeeded(story: Story) -> None:
    _run(story)
    story.answer(0, changed=True if story.category == "convergent" else None)


def _unchanged(story: Story) -> None:
    _run(story)
    story.answer(None, changed=False)


def _failed(story: Story) -> None:
    _run(story)
    story.answer(1)


def _not_sent_then_sent(story: Story) -> None:
    story.open()
    story.close(DispatchState.NOT_SENT, Boundary.NONE, "not_sent.unreachable")
    story.open("connection_not_established", "nothing_dispatched")
    story.dispatch()
    story.see(Boundary.CLAIMED)
    story.answer(0)


def _never_dispatched(story: Story) -> None:
    story.open()
    story.close(DispatchState.NOT_SENT, Boundary.NONE, "not_sent.login")


def _lost_then_found(story: Story) -> None:
    _run(story)
    story.lose(Boundary.CLAIMED)
    story.find(0)


def _lost_then_adopted(story: Story) -> None:
    story.open()
    story.dispatch()
    story.lose()
    story.open("response_lost_after_dispatch", "destination_idempotency_confirmed")
    story.dispatch("retry")
    story.answer(0, own=False)


def _left_running_then_failed(story: Story) -> None:
    _run(story)
    story.see(Boundary.STARTED)
    story.lose(Boundary.STARTED)
    story.look("running", changed=False)
    story.find(3)


def _unknown(story: Story) -> None:
    story.open()
    story.dispatch()
    story.lose()
    story.look("interrupted", changed=False)
    story.tell(events.RetryRefused("unknown_without_deduplication", "interrupted: a person decides"))


def _fenced(story: Story) -> None:
    story.open()
    story.dispatch()
    story.lose()
    observation = story.look("fenced", changed=True, kind="fence")
    story.resolve(State.CANCELLED, "fence", "the fence won: it never ran and never will", None, observation)


# How often each happens among a hundred, to what categories (a slice of WORK).
DECK: tuple[tuple[int, Callable[[Story], None], slice], ...] = (
    (46, _succeeded, slice(None)),
    (14, _unchanged, slice(1, 3)),
    (10, _failed, slice(None)),
    (7, _not_sent_then_sent, slice(1, None)),
    (3, _never_dispatched, slice(None)),
    (7, _lost_then_found, slice(1, None)),
    (7, _lost_then_adopted, slice(1, None)),
    (2, _left_running_then_failed, slice(1, None)),
    (2, _unknown, slice(3, None)),
    (2, _fenced, slice(3, None)),
)


class Synthesis:
    """The made-up world: a clock that only the story moves, hosts, sessions, and chance from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 -- the same history for the same seed is the point
        self.policy = hashlib.sha256(b"synthetic policy").hexdigest()
        self.pid = 1000
        self.session = ""
        self._microseconds = 0
        self._minted = (-1, "")
        self._accounts = [Account(f"host-{i:02}.invalid", "ops", f"192.0.2.{i}", 22) for i in range(HOSTS)]
        self._stores: dict[str, str] = {}
        self._met: list[Draft] = []

    def mint(self, prefix: str) -> str:
        # A valid ULID whose random part is in hexadecimal digits: five times as fast as one of `core.identity.mint`.
        milliseconds = int(_BEGIN.timestamp()) * 1000 + self._microseconds // 1000
        if milliseconds != self._minted[0]:
            self._minted = milliseconds, mint("", milliseconds, bytes(10))[1:11]
        return f"{prefix}_{self._minted[1]}{self.random.getrandbits(64):016x}"

    def draft(self, body: AnyBody, operation: str | None = None, attempt: str | None = None) -> Draft:
        self._microseconds += self.random.randrange(500, 400_000)
        at = (_BEGIN + timedelta(microseconds=self._microseconds)).isoformat(timespec="microseconds")
        return Draft(self.mint("ev"), at[:26] + "Z", self.session, body, operation, attempt)

    def account(self) -> Account:
        return self.random.choice(self._accounts)

    def store_of(self, account: Account) -> str:
        """The marker store of an account; a `store.met` is due the first time."""
        if account.key not in self._stores:
            store = hashlib.sha256(account.key.encode()).hexdigest()[:32]
            self._stores[account.key] = store
            self._met.append(self.draft(events.StoreMet(account.key, store, "synthetic", "file_synced")))
        return self._stores[account.key]

    def take_met(self) -> list[Draft]:
        """The `store.met` that are due before what was told since."""
        due, self._met = self._met, []
        return due

    def history(self) -> Iterator[Draft]:
        """Drafts without end."""
        deck = [(tell, work) for count, tell, work in DECK for _ in range(count)]
        told = 0
        while True:
            self.random.shuffle(deck)
            for tell, work in deck:
                if told % _SESSION_EVERY == 0:
                    yield from self._open_session()
                told += 1
                story = Story(self, self.random.choice(WORK[work]))
                tell(story)
                yield from self.take_met()
                yield from story.drafts

    def _open_session(self) -> Iterator[Draft]:
        self.session = self.mint("ses")
        self.pid += 1
        yield self.draft(events.SessionOpened("synthetic", self.pid, "1", "synthetic", "synthetic", "0"))
        yield self.draft(events.PolicyLoaded(self.policy, None))


def fill(ledger: Ledger, count: int, *, seed: int = 0, group: int = GROUP) -> int:
    """Append `count` synthetic events to an empty ledger, in groups; how many there are then.

    Raises `UsageError` where the ledger is not empty, and whatever `append` raises: what was appended by then stays.
    """
    history = Synthesis(seed).history()
    done = 0
    while done < count:
        drafts = list(islice(history, min(group, count - done)))
        expected = done

        def decide(view: LedgerView, drafts: list[Draft] = drafts, expected: int = expected) -> list[Draft]:
            if view.head()[0] != expected:
                raise errors.UsageError(
                    "the ledger is not empty", hint="a synthetic history goes into a ledger of its own: --ledger FILE"
                )
            return drafts

        done += len(ledger.append(decide))
    return done
