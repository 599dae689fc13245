"""Operations and histories of events for tests of the pure core."""

from typing import Any

from hypothesis import strategies as st

from sshop.core import events
from sshop.core.events import Event
from sshop.core.operation import Account, Attempt, Operation

ACCOUNT = Account("web", "deploy", "web.example", 22)
AT = "2026-01-01T00:00:00.000000Z"
OP = "op_01jh0000000000000000000000"


def attempt(number: int = 1, **changes: Any) -> Attempt:
    values: dict[str, Any] = {
        "attempt_id": f"att_{number}", "number": number, "session_id": "ses_1", "opened_at": AT, "pid": 1,
        "pid_start": "1", "machine": "here",
    }  # fmt: skip
    return Attempt(**{**values, **changes})


def operation(**changes: Any) -> Operation:
    values: dict[str, Any] = {
        "operation_id": OP, "session_id": "ses_1", "owner": "ses_1", "owner_pid": 1, "owner_pid_start": "1",
        "owner_machine": "here", "account": ACCOUNT, "created_at": AT, "updated_at": AT, "kind": "raw", "name": None,
        "summary": "do it", "subject_ref": None, "category": "append_only", "effects": (), "command": {},
        "fingerprint": "f" * 64, "secret_fingerprint": None, "secret_key_id": None, "budget": 3, "note": None,
        "policy_digest": None, "policy_commit": None,
    }  # fmt: skip
    return Operation(**{**values, **changes})


def opened_operation(
    *, dispatched: int = 0, response: str | None = None, dispatch_state: str | None = "sent_no_response", **changes: Any
) -> Operation:
    """With so many attempts that were dispatched and are closed, the last one with this response."""
    made = tuple(
        attempt(n + 1, dispatched_at=AT, closed_at=AT, dispatch_state=dispatch_state, response=response)
        for n in range(dispatched)
    )
    return operation(attempts=made, **changes)


def event(seq: int, body: Any, attempt_id: str | None = None, *, operation_id: str | None = OP) -> Event:
    return Event(
        seq, f"ev_{seq}", f"2026-01-01T00:00:00.{seq:06}Z", "ses_1", operation_id, attempt_id, body.type, body, "", ""
    )


def intent(**changes: Any) -> events.IntentCreated:
    values: dict[str, Any] = {
        "account": ACCOUNT.to_json(), "kind": "raw", "name": None, "summary": "do it", "subject_ref": None,
        "category": "append_only", "effects": [], "command": {}, "fingerprint": "f" * 64, "secret_fingerprint": None,
        "secret_key_id": None, "budget": 3, "note": None, "policy_digest": None, "policy_commit": None, "new": False,
        "owner": "ses_1", "owner_pid": 1, "owner_pid_start": "1", "owner_machine": "here", "contract": "not_declared",
        "terms": {},
    }  # fmt: skip
    return events.IntentCreated(**{**values, **changes})


RESULT: dict[str, Any] = {"record_id": "rec_1", "generation": 1, "status": 0}


class History:
    """Builds a valid history, step by step, as the runner, reconcile and a person would write it."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw
        self.events: list[Event] = []
        self.attempts = 0
        self.open: str | None = None
        self.sent = self.resolved = False
        self._add(intent(category=draw(st.sampled_from(["read_only", "convergent", "append_only", "destructive"]))))

    def _add(self, body: Any, attempt_id: str | None = None) -> None:
        self.events.append(event(len(self.events) + 1, body, attempt_id))

    def step(self) -> None:
        if self.open is not None:
            self._in_flight()
        else:
            self._between()

    def _in_flight(self) -> None:
        name = self.open
        if not self.sent:
            if self._draw(st.booleans()):
                self._add(events.AttemptDispatched(1, "first", "st_1", "SHA256:k", "b", None), name)
                self.sent = True
            else:
                self._close("not_sent", "none", code="not_sent.unreachable")
            return
        match self._draw(st.sampled_from(["claimed", "started", "lost", "left", "refused", "result", "died"])):
            case "claimed" | "started" as boundary:
                self._add(
                    events.BoundarySeen(boundary, "host", 1, "rec_1", "file_synced", None, "st_1", "a", None, "b"), name
                )
            case "lost" | "died":
                self._add(events.ResponseLost("request_sent", "gone"), name)
                self._close("sent_no_response", "request_sent", code="link.lost")
            case "left":
                self._add(events.ResponseReceived("running", None, "running", 1, "rec_1", False, None, None), name)
                self._close("sent_no_response", "claimed", code="left")
            case "refused":
                nothing = self._draw(st.booleans())
                state = self._draw(st.sampled_from([None, "absent", "interrupted", "never_started", "haunted"]))
                self._add(events.ResponseReceived("refused", "no_space", state, 1, None, False, None, None), name)
                self._close("execution_error", "request_sent", nothing=nothing, code="no_space")
            case _:
                own = self._draw(st.booleans())
                self._add(
                    events.BoundarySeen("exit_status_received", "host", 1, "rec_1", None, None, "st_1", "a", None, "b"),
                    name,
                )
                self._add(events.ResponseReceived("result", None, "exited", 1, "rec_1", own, RESULT, None), name)
                self._close("response_received", "exit_status_received")
                if self._draw(st.booleans()):
                    self._resolve(self._draw(st.sampled_from(["succeeded", "failed"])), "result")

    def _close(self, state: str, boundary: str, *, nothing: bool = False, code: str | None = None) -> None:
        seen_by = None if boundary == "none" else "runner"
        self._add(events.AttemptClosed(state, boundary, seen_by, nothing, code, None), self.open)
        self.open, self.sent = None, False

    def _resolve(self, state: str, by: str) -> None:
        if not self.resolved:
            self._add(events.OperationResolved(state, by, "rec_1", 1, None, "not_declared", "seen"))
            self.resolved = True

    def _between(self) -> None:
        steps = ["look", "probe", "verify", "owner", "refuse", "acknowledge", "supersede", "revoke"]
        if not self.resolved:
            steps += ["attempt"] * 8 + ["found", "fence", "probed", "decided"]
        match self._draw(st.sampled_from(steps)):
            case "attempt":
                self.attempts += 1
                parent = f"att_{self.attempts - 1}" if self.attempts > 1 else None
                if parent is not None:
                    self._add(events.RetryDecided(parent, "rate_limited", "nothing_dispatched", 1, "why"))
                self.open = f"att_{self.attempts}"
                self._add(
                    events.AttemptOpened(
                        self.attempts, 1, "1", "here", parent, None, None, 2, "f" * 64, None, None, None, None
                    ),
                    self.open,
                )
            case "look" | "probe" | "verify" as kind:
                words = [None, "absent", "running", "never_started", "interrupted", "unreadable", "exited", "haunted"]
                match_ = (
                    self._draw(st.sampled_from(["satisfied", "violated", "unchecked"])) if kind == "verify" else "m"
                )
                self._add(
                    events.LookupPerformed(
                        "obs_1", kind, "q", "e", None, match_, self._draw(st.sampled_from(words)), 1, None, False, "w"
                    )
                )
            case "found":
                self._add(events.RemoteRecordFound("obs_1", 1, "rec_1", None, RESULT))
                self._resolve(self._draw(st.sampled_from(["succeeded", "failed"])), "result")
            case "fence":
                self._resolve("cancelled", "fence")
            case "probed":
                self._resolve("succeeded", "probe")
            case "decided":
                self._resolve(
                    self._draw(st.sampled_from(["succeeded", "failed", "duplicate_effect_confirmed"])), "decision"
                )
            case "owner":
                self._add(events.OwnerChanged("ses_2", 2, "2", "here", "gone"))
            case "refuse":
                self._add(events.RetryRefused(self._draw(st.sampled_from(["key_conflict", "policy_forbids"])), "why"))
            case "acknowledge":
                self._add(events.OperationAcknowledged("rec_1"))
            case "revoke":
                self._add(events.ApprovalRevoked("apr_1", "me"))
            case _:
                self._add(events.OperationSuperseded("op_x", "why"))


@st.composite
def histories(draw: Any) -> list[Event]:
    history = History(draw)
    for _ in range(draw(st.integers(0, 25))):
        history.step()
    return history.events
