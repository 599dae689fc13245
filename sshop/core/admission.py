"""What a call for an operation means, given what the ledger holds: create, continue, attach, answer or refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

from sshop import errors
from sshop.core.operation import Attempt, Category, Operation, State
from sshop.core.value import Value


class Way(StrEnum):
    """`create` a new operation, `attempt` one that exists, `attach` to what is under way, `answer` from the ledger,
    or `settle` one that is unresolved by the recovery table.
    """

    CREATE = "create"
    ATTEMPT = "attempt"
    ATTACH = "attach"
    SETTLE = "settle"
    ANSWER = "answer"


class Admission(Value):
    """`secret_unchecked`: the secrets cannot be compared with the operation's, so that it may be answered and looked
    at, and nothing runs.
    """

    way: Way
    operation: Operation | None = None
    secret_unchecked: bool = False

    @property
    def opens(self) -> bool:
        """Whether an attempt is to be made at once."""
        return self.way in (Way.CREATE, Way.ATTEMPT) and not self.secret_unchecked


class Call(Value):
    """What distinguishes one request from another."""

    account_key: str
    category: str
    fingerprint: str
    secret_fingerprint: str | None
    secret_key_id: str | None
    effects: tuple[str, ...] = ()


def live_attempt(operation: Operation, alive: Callable[[Attempt], bool]) -> Attempt | None:
    """The attempt that another living process has in flight."""
    for attempt in operation.attempts:
        if attempt.in_flight and alive(attempt):
            return attempt
    return None


def by_id(existing: Operation | None, call: Call, alive: Callable[[Attempt], bool]) -> Admission:
    """For a call that names its operation.

    Raises `Refused` (`key_conflict`) where the ID belongs to another request or account.
    """
    if existing is None:
        return Admission(Way.CREATE)
    name = existing.operation_id
    if existing.account.key != call.account_key:
        raise errors.Refused(
            "key_conflict", f"operation {name} is bound to {existing.account.key}, not to {call.account_key}",
            operation_id=name, hint="a changed target is a new operation",
        )  # fmt: skip
    if existing.fingerprint != call.fingerprint or existing.category != call.category:
        raise errors.Refused(
            "key_conflict", f"operation {name} belongs to another request", operation_id=name,
            hint=f"it was: {existing.summary}; a changed request is a new operation (leave out --op)",
        )  # fmt: skip
    same_key = existing.secret_key_id == call.secret_key_id
    if same_key and existing.secret_fingerprint != call.secret_fingerprint:
        raise errors.Refused(
            "key_conflict", f"operation {name} had other secret values", operation_id=name,
            hint="a changed secret is a changed request, hence a new operation",
        )  # fmt: skip
    found = _way(existing, alive)
    return found if same_key else Admission(found.way, existing, secret_unchecked=True)


def _way(existing: Operation, alive: Callable[[Attempt], bool]) -> Admission:
    if live_attempt(existing, alive) is not None:
        return Admission(Way.ATTACH, existing)
    if existing.resolved:
        return Admission(Way.ANSWER, existing)
    if not existing.dispatched:
        return Admission(Way.ATTEMPT, existing)
    if existing.category == Category.READ_ONLY and existing.dispatch_count < existing.budget:
        return Admission(Way.ATTEMPT, existing)
    return Admission(Way.SETTLE, existing)


def by_request(candidates: Sequence[Operation], call: Call, alive: Callable[[Attempt], bool]) -> Admission:
    """For a call that declares a new intent without `--new`.

    Continues an operation of the same request that was never dispatched and has no live attempt; one that another
    policy sorted otherwise would be recovered by rules that hold no more. Raises `Refused`
    (`unresolved_twin`) where one was dispatched and is not resolved, or is under way.
    """
    if call.category == Category.READ_ONLY:
        return Admission(Way.CREATE)
    continued: Operation | None = None
    for other in candidates:
        if other.category == Category.READ_ONLY or other.resolved or other.superseded_by is not None:
            continue
        if other.dispatched or live_attempt(other, alive) is not None:
            raise errors.Refused(
                "unresolved_twin",
                f"operation {other.operation_id} is the same request on the same account, and is {other.state}",
                operation_id=other.operation_id,
                hint=f"settle it first: sshop replay {other.operation_id}; or say --new if a second effect is meant",
            )
        same_rules = (other.category, other.effects) == (call.category, call.effects)
        if same_rules and other.secret_fingerprint == call.secret_fingerprint:
            continued = continued or other
    return Admission(Way.CREATE) if continued is None else Admission(Way.ATTEMPT, continued)


def subject_free(blocking: Sequence[Operation], category: str, operation_id: str | None) -> None:
    """Raises `Refused` (`subject_has_unknown`) while another operation on the subject is unknown."""
    if category == Category.READ_ONLY:
        return
    for other in blocking:
        if other.operation_id != operation_id and other.state == State.UNKNOWN and other.category != Category.READ_ONLY:
            raise errors.Refused(
                "subject_has_unknown",
                f"operation {other.operation_id} on {other.subject_ref} has an unknown outcome",
                operation_id=other.operation_id,
                hint=f"resolve it first: sshop replay {other.operation_id}",
            )
