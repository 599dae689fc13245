"""The nouns: the closed lists of DESIGN section 2, host account, attempt and operation as values.

The values are what a fold of events yields (`sshop.core.lifecycle`); nothing here decides anything.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sshop.core.identity import is_minted
from sshop.core.value import Value


class Category(StrEnum):
    READ_ONLY = "read_only"
    CONVERGENT = "convergent"
    APPEND_ONLY = "append_only"
    DESTRUCTIVE = "destructive"


class Effect(StrEnum):
    FINANCIAL = "financial"
    NOTIFICATION = "notification"
    CREDENTIAL = "credential"
    SERVICE_RESTART = "service_restart"
    DATA_LOSS = "data_loss"


class DispatchState(StrEnum):
    NOT_SENT = "not_sent"
    SENT_NO_RESPONSE = "sent_no_response"
    RESPONSE_RECEIVED = "response_received"
    EXECUTION_ERROR = "execution_error"


class Boundary(StrEnum):
    """How far an attempt is known to have come; the order is `BOUNDARY_ORDER`."""

    NONE = "none"
    REQUEST_SENT = "request_sent"
    CLAIMED = "claimed"
    STARTED = "started"
    EXIT_STATUS_RECEIVED = "exit_status_received"


BOUNDARY_ORDER = tuple(Boundary)

# What a guard may say of the newest marker of an operation (docs/PROTOCOL.md section 6). Other words prove nothing.
MARKER_STATES = frozenset(
    ["absent", "unreadable", "fenced", "expired", "exited", "running", "never_started", "interrupted"]
)


class State(StrEnum):
    OPEN = "open"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"
    CANCELLED = "cancelled"
    DUPLICATE = "duplicate_effect_confirmed"


RESOLVED = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.DUPLICATE})


class RetryReason(StrEnum):
    CONNECTION_NOT_ESTABLISHED = "connection_not_established"
    RATE_LIMITED = "rate_limited"
    DESTINATION_5XX = "destination_5xx"
    RESPONSE_LOST = "response_lost_after_dispatch"
    CREDENTIAL_REFRESHED = "credential_refreshed"
    OPERATOR_REQUESTED = "operator_requested"


class RetryDecision(StrEnum):
    NOTHING_DISPATCHED = "nothing_dispatched"
    NOTHING_STARTED = "nothing_started"
    READ_ONLY = "read_only"
    CONVERGENCE_CONDITION = "convergence_condition"
    DEDUPLICATED = "destination_idempotency_confirmed"
    OPERATOR_APPROVED = "operator_approved"


class Refusal(StrEnum):
    POLICY_FORBIDS = "policy_forbids"
    APPROVAL_REQUIRED = "approval_required"
    AUTHORITY_EXPIRED = "authority_expired"
    AUTHORITY_REVOKED = "authority_revoked"
    UNKNOWN_WITHOUT_DEDUPLICATION = "unknown_without_deduplication"
    BUDGET_EXHAUSTED = "attempt_budget_exhausted"
    KEY_CONFLICT = "key_conflict"
    STORE_CHANGED = "marker_store_changed"
    STORE_ROLLED_BACK = "marker_store_rolled_back"
    MARKER_EXPIRED = "marker_expired"
    MARKER_UNREADABLE = "marker_unreadable"
    UNRESOLVED_TWIN = "unresolved_twin"
    SUBJECT_HAS_UNKNOWN = "subject_has_unknown"
    NOT_THE_OWNER = "not_the_owner"
    FENCED = "fenced"


class Health(StrEnum):
    HEALTHY = "healthy"
    DUPLICATE = "duplicate"
    KEY_CONFLICT = "key_conflict"
    UNCERTAIN = "uncertain"


class Contract(StrEnum):
    """What the declared check of the result (`verify`) said."""

    SATISFIED = "satisfied"
    VIOLATED = "violated"
    NOT_DECLARED = "not_declared"
    UNCHECKED = "unchecked"


class Account(Value):
    """One account on one host, as the operation is bound to it.

    `host` is the word the caller used, the rest what it resolves to. `key` is what identifies the account in the
    ledger.
    """

    host: str
    user: str
    address: str
    port: int

    @property
    def key(self) -> str:
        return f"{self.user}@{self.address}:{self.port}"

    def to_json(self) -> dict[str, Any]:
        return {"host": self.host, "user": self.user, "address": self.address, "port": self.port}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Account:
        return cls(value["host"], value["user"], value["address"], value["port"])


class Attempt(Value):
    """One try to have an operation executed, as the events tell it. Times are RFC 3339."""

    attempt_id: str
    number: int
    session_id: str
    opened_at: str
    pid: int
    pid_start: str
    machine: str
    retry_of_attempt_id: str | None = None
    retry_reason: str | None = None
    retry_decision: str | None = None
    budget_remaining: int = 0
    fingerprint: str = ""
    prior_fingerprint: str | None = None
    secret_fingerprint: str | None = None
    authority_ref: str | None = None
    policy_digest: str | None = None
    dispatched_at: str | None = None
    generation: int | None = None
    boundary: str = Boundary.NONE
    boundary_seen_by: str | None = None
    record_id: str | None = None
    host_key: str | None = None
    store_id: str | None = None
    boot: str | None = None
    sync: str | None = None
    closed_at: str | None = None
    dispatch_state: str | None = None
    nothing_claimed: bool = False
    response: str | None = None
    detail: str | None = None

    @property
    def in_flight(self) -> bool:
        return self.closed_at is None

    @property
    def counts_as_dispatched(self) -> bool:
        """Dispatched, and not answered with the host's word that nothing of the operation stands there."""
        return self.dispatched_at is not None and not self.nothing_claimed


class Result(Value):
    """What the host's record says of how the command ended."""

    record_id: str | None
    generation: int
    status: int | None
    changed: bool | None = None
    killed: str | None = None
    before: int | None = None
    after: int | None = None
    limit_enforced: bool = True
    milliseconds: int | None = None
    stdout_bytes: int = 0
    stdout_sha256: str | None = None
    stderr_bytes: int = 0
    stderr_sha256: str | None = None
    sync: str | None = None
    by_attempt: str | None = None

    def to_json(self) -> dict[str, Any]:
        return _fields_of(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Result:
        return cls(**value)


class Terms(Value):
    """What the catalogue fixed for an operation beside its command, so that it can be continued from the ledger alone.

    `verify` is the result contract: a command (`command.to_json`) and the exit status that satisfies it. `max_output`
    is how many bytes of each output come with an answer, `root` the folder of guard and store on the host.
    """

    timeout_s: int | None = None
    success_exit: tuple[int, ...] = (0,)
    rate_limited_exit: tuple[int, ...] = ()
    temporary_failure_exit: tuple[int, ...] = ()
    verify: dict[str, Any] | None = None
    verify_exit: int = 0
    verify_timeout_s: int | None = None
    max_output: int = 1 << 20
    weakest_grade: str | None = None
    root: str = "~/.sshop"

    def to_json(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in _fields_of(self).items()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Terms:
        arguments: dict[str, Any] = {
            name: tuple(item) if isinstance(item, list) else item for name, item in value.items()
        }
        return cls(**arguments)


class Operation(Value):
    """One intended effect on one host account: the fold of its events."""

    operation_id: str
    session_id: str
    owner: str
    owner_pid: int
    owner_pid_start: str
    owner_machine: str
    account: Account
    created_at: str
    updated_at: str
    kind: str
    name: str | None
    summary: str
    subject_ref: str | None
    category: str
    effects: tuple[str, ...]
    command: dict[str, Any]
    fingerprint: str
    secret_fingerprint: str | None
    secret_key_id: str | None
    budget: int
    note: str | None
    policy_digest: str | None
    policy_commit: str | None
    terms: Terms = Terms()
    new: bool = False
    state: str = State.OPEN
    host_state: str | None = None
    generation: int = 0
    store_id: str | None = None
    claim_seen: tuple[int, str] | None = None
    records: tuple[str, ...] = ()
    result: Result | None = None
    replayed: bool = False
    contract: str = Contract.NOT_DECLARED
    resolved_by: str | None = None
    resolution: str | None = None
    refusal: str | None = None
    acknowledged: bool = False
    supersedes: str | None = None
    superseded_by: str | None = None
    decisions: int = 0
    attempts: tuple[Attempt, ...] = ()
    brought: bool = False

    @property
    def resolved(self) -> bool:
        return self.state in RESOLVED

    @property
    def minted_here(self) -> bool:
        """Whether this ledger minted its ID, so that nobody else can have dispatched it."""
        return is_minted(self.operation_id) and not self.brought

    @property
    def dispatched(self) -> bool:
        """Whether any attempt counts as dispatched."""
        return any(attempt.counts_as_dispatched for attempt in self.attempts)

    @property
    def unresolved(self) -> bool:
        return self.dispatched and not self.resolved

    @property
    def dispatch_count(self) -> int:
        return sum(1 for attempt in self.attempts if attempt.counts_as_dispatched)

    @property
    def latest(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None


def _fields_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass by name; not `asdict`, which copies all that is below and takes 15 times as long."""
    return {name: getattr(value, name) for name in value.__slots__}


def operation_to_json(operation: Operation) -> dict[str, Any]:
    """A JSON value from which `operation_from_json` makes the same operation again; parts of it are shared."""
    return {
        **_fields_of(operation),
        "account": operation.account.to_json(),
        "effects": list(operation.effects),
        "terms": operation.terms.to_json(),
        "claim_seen": list(operation.claim_seen) if operation.claim_seen else None,
        "records": list(operation.records),
        "result": operation.result.to_json() if operation.result else None,
        "attempts": [_fields_of(attempt) for attempt in operation.attempts],
    }


def operation_from_json(value: dict[str, Any]) -> Operation:
    claim = value["claim_seen"]
    result = value["result"]
    return Operation(
        **{
            **value,
            "account": Account.from_json(value["account"]),
            "effects": tuple(value["effects"]),
            "terms": Terms.from_json(value["terms"]),
            "records": tuple(value["records"]),
            "claim_seen": (claim[0], claim[1]) if claim else None,
            "result": Result.from_json(result) if result else None,
            "attempts": tuple(Attempt(**attempt) for attempt in value["attempts"]),
        }
    )
