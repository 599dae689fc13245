"""The intent and the opening of attempts: what must be durable before anything is sent.

What an attempt then does on the wire is `sshop.attempt`; whether there may be another is `sshop.core.recovery`.
"""

from __future__ import annotations

from sshop import __version__, errors
from sshop.core import admission, events, lifecycle, recovery
from sshop.core import command as commands
from sshop.core.admission import Admission, Call, Way
from sshop.core.events import Draft
from sshop.core.operation import DispatchState, Operation, Refusal, RetryDecision
from sshop.ports import LedgerView
from sshop.world import Grounds, Intent, World


class Runner:
    """Declares intents and opens attempts."""

    def __init__(self, world: World) -> None:
        self._world = world

    # -- intent ------------------------------------------------------------------------------------------------------

    def call(self, intent: Intent) -> Call:
        fingerprint = commands.fingerprint(intent.command)
        secret_id = secret = None
        if commands.has_secret_part(intent.command):
            secret_id, key = self._world.ledger.secret_key()
            secret = commands.secret_fingerprint(intent.command, key)
        return Call(intent.account.key, intent.category, fingerprint, secret, secret_id, intent.effects)

    def declare(self, intent: Intent) -> tuple[Admission, str | None]:
        """Make the intent durable, or find the operation that the call continues; with it the open attempt's ID, where
        an attempt is to be made at once.

        Raises `Refused` (`key_conflict`, `unresolved_twin`, `subject_has_unknown`, `not_the_owner`).
        """
        world, call = self._world, self.call(intent)
        operation_id = intent.operation_id or world.ids.mint("op")
        attempt_id = world.ids.mint("att")
        outcome_: list[Admission] = []

        def decide(view: LedgerView) -> list[Draft]:
            drafts: list[Draft] = []
            if not view.session_exists(world.me.session_id):
                drafts += self._session_drafts(intent)
            if intent.operation_id is not None:
                admitted = admission.by_id(view.operation(operation_id), call, world.alive)
            elif intent.new:
                admitted = Admission(Way.CREATE)
            else:
                candidates = view.same_request(call.account_key, call.fingerprint)
                admitted = admission.by_request(candidates, call, world.alive)
            existing = admitted.operation
            if intent.subject_ref is not None and admitted.opens:
                blocking = view.unknown_on_subject(call.account_key, intent.subject_ref)
                admission.subject_free(blocking, call.category, existing.operation_id if existing else None)
            if existing is not None:
                drafts += self.take_over(existing)
            elif admitted.way is Way.CREATE:
                drafts.append(world.draft(self._intent_body(intent, call), operation_id))
            if admitted.opens:
                name = existing.operation_id if existing else operation_id
                body = self._opening(existing, call.fingerprint, call.secret_fingerprint, intent, None)
                drafts.append(world.draft(body, name, attempt_id))
            outcome_[:] = [admitted]
            return drafts

        try:
            world.ledger.append(decide)
        except errors.Refused as refused:
            if refused.refusal == Refusal.KEY_CONFLICT and refused.operation_id is not None:
                body = events.RetryRefused(Refusal.KEY_CONFLICT, f"{refused.message} (asked: {call.fingerprint})")
                world.append([world.draft(body, refused.operation_id)])
            raise
        admitted = outcome_[0]
        name = admitted.operation.operation_id if admitted.operation else operation_id
        found = Admission(admitted.way, world.operation(name), admitted.secret_unchecked)
        return found, attempt_id if admitted.opens else None

    def _session_drafts(self, intent: Intent) -> list[Draft]:
        me = self._world.me
        drafts = [
            self._world.draft(
                events.SessionOpened(me.agent, me.owner_pid, me.owner_pid_start, me.machine, me.user, __version__)
            )
        ]
        if intent.policy_digest is not None:
            drafts.append(self._world.draft(events.PolicyLoaded(intent.policy_digest, intent.policy_commit)))
        return drafts

    def _intent_body(self, intent: Intent, call: Call) -> events.IntentCreated:
        me = self._world.me
        return events.IntentCreated(
            account=intent.account.to_json(),
            kind=intent.kind,
            name=intent.name,
            summary=intent.summary,
            subject_ref=intent.subject_ref,
            category=intent.category,
            effects=list(intent.effects),
            command=commands.to_json(intent.command),
            fingerprint=call.fingerprint,
            secret_fingerprint=call.secret_fingerprint,
            secret_key_id=call.secret_key_id,
            budget=intent.budget,
            note=intent.note,
            policy_digest=intent.policy_digest,
            policy_commit=intent.policy_commit,
            new=intent.new,
            owner=me.session_id,
            owner_pid=me.owner_pid,
            owner_pid_start=me.owner_pid_start,
            owner_machine=me.machine,
            contract=lifecycle.contract_at_birth(declared=intent.terms.verify is not None),
            terms=intent.terms.to_json(),
            brought=intent.operation_id is not None,
        )

    def take_over(self, operation: Operation) -> list[Draft]:
        """The events that close what a dead process left open, and that change the owner where the old one is gone.

        Raises `Refused` (`not_the_owner`) where another living session owns an operation that is not resolved.
        """
        world, me = self._world, self._world.me
        drafts: list[Draft] = []
        name = operation.operation_id
        for attempt in operation.attempts:
            if attempt.in_flight and not world.alive(attempt):
                sent = attempt.dispatched_at is not None
                state = DispatchState.SENT_NO_RESPONSE if sent else DispatchState.NOT_SENT
                detail = "its process is gone"
                if sent:
                    drafts.append(world.draft(events.ResponseLost(attempt.boundary, detail), name, attempt.attempt_id))
                body = events.AttemptClosed(
                    state, attempt.boundary, attempt.boundary_seen_by, False, None if sent else "not_sent.died", detail
                )
                drafts.append(world.draft(body, name, attempt.attempt_id))
        if operation.owner == me.session_id:
            if (operation.owner_pid, operation.owner_pid_start) != (me.owner_pid, me.owner_pid_start):
                drafts.append(world.draft(self._owner("the session goes on in another process"), name))
        elif not operation.resolved and admission.live_attempt(operation, world.alive) is None:
            alive = world.processes.alive(operation.owner_pid, operation.owner_pid_start, operation.owner_machine)
            if alive is not False:
                raise errors.Refused(
                    Refusal.NOT_THE_OWNER,
                    f"session {operation.owner} owns operation {name}, and its process {operation.owner_pid} lives",
                    operation_id=name,
                    hint="ask its owner, or look with `sshop reconcile`, which acts on nothing",
                )
            drafts.append(world.draft(self._owner(f"the process of session {operation.owner} is gone"), name))
        return drafts

    def _owner(self, why: str) -> events.OwnerChanged:
        me = self._world.me
        return events.OwnerChanged(me.session_id, me.owner_pid, me.owner_pid_start, me.machine, why)

    # -- one attempt -------------------------------------------------------------------------------------------------

    def _opening(
        self,
        operation: Operation | None,
        fingerprint: str,
        secret: str | None,
        intent: Intent | None,
        grounds: Grounds | None,
    ) -> events.AttemptOpened:
        me = self._world.me
        last = operation.latest if operation else None
        budget = operation.budget if operation else intent.budget if intent else 0
        used = operation.dispatch_count if operation else 0
        reason = decision = None
        if operation is not None and last is not None:
            reason = grounds.reason if grounds else recovery.reason(operation)
            decision = grounds.decision if grounds else RetryDecision.NOTHING_DISPATCHED
            if grounds is None and operation.dispatched:
                decision = RetryDecision.READ_ONLY
        return events.AttemptOpened(
            number=len(operation.attempts) + 1 if operation else 1,
            pid=me.pid,
            pid_start=me.pid_start,
            machine=me.machine,
            retry_of_attempt_id=last.attempt_id if last else None,
            retry_reason=reason,
            retry_decision=decision,
            budget_remaining=max(0, budget - used - 1),
            fingerprint=fingerprint,
            prior_fingerprint=last.fingerprint if last else None,
            secret_fingerprint=secret,
            authority_ref=None,
            policy_digest=operation.policy_digest if operation else intent.policy_digest if intent else None,
        )

    def open_attempt(self, operation: Operation, command: commands.Command, grounds: Grounds) -> str:
        """Record the decision and open the attempt, in one transaction that refuses a second one in flight.

        Raises `Refused`: `not_the_owner` where another process has an attempt in flight, or resolved it meanwhile;
        `subject_has_unknown` for one that nothing was dispatched of.
        """
        world, name = self._world, operation.operation_id
        attempt_id = world.ids.mint("att")
        secret = operation.secret_fingerprint
        if commands.has_secret_part(command):
            secret = commands.secret_fingerprint(command, world.ledger.secret_key()[1])

        def decide(view: LedgerView) -> list[Draft]:
            current = view.operation(name)
            assert current is not None
            if admission.live_attempt(current, world.alive) is not None or current.resolved:
                raise errors.Refused(
                    Refusal.NOT_THE_OWNER, f"another process is at work on operation {name}", operation_id=name
                )
            if current.subject_ref is not None and not current.dispatched:
                blocking = view.unknown_on_subject(current.account.key, current.subject_ref)
                admission.subject_free(blocking, current.category, name)
            drafts = self.take_over(current)
            last = current.latest
            if last is not None and grounds.reason is not None and grounds.decision is not None:
                left = max(0, current.budget - current.dispatch_count)
                body = events.RetryDecided(last.attempt_id, grounds.reason, grounds.decision, left, grounds.why)
                drafts.append(world.draft(body, name))
            opening = self._opening(current, commands.fingerprint(command), secret, None, grounds)
            return [*drafts, world.draft(opening, name, attempt_id)]

        world.ledger.append(decide)
        return attempt_id
