"""An operation brought to its best-supported end: look, decide by the table, attempt where it allows, stop where not.

`run` comes through here after its first attempt, `replay` begins here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

from sshop import errors, probe, reconcile
from sshop.attempt import Trial
from sshop.conversation import Line
from sshop.core import admission, events, recovery
from sshop.core import command as commands
from sshop.core.admission import Admission, Way
from sshop.core.operation import Category, Operation, Refusal, RetryDecision, State
from sshop.core.recovery import Recovery, Situation, Step
from sshop.core.value import Value, replace
from sshop.ending import REFUSAL_EXIT, exit_name, of_another_ledger
from sshop.question import ask, question
from sshop.runner import Runner
from sshop.world import Answer, Grounds, Intent, World

T = TypeVar("T")

NOT_SENT_TRIES = 5
UNCHECKED = "the secrets of this request cannot be compared with those of the operation; nothing ran"
# An attempt that ended so would end so again.
FINAL_EXITS = frozenset(["not_sent", "store", "twin", "not_owner", "key_conflict", "fenced", "policy", "approval"])


class Mode(Value):
    """How far a call may go: `recover` is `auto`, `look` or `none`; `wait_s` counts from the claim that was seen.

    The pauses between tries double from the first to the longest, in seconds, and have jitter.
    """

    recover: str = "auto"
    wait_s: float | None = None
    operator: bool = False
    tries: int = NOT_SENT_TRIES
    first_pause_s: float = 0.5
    longest_pause_s: float = 20.0


class Course:
    """One call's way through one operation."""

    def __init__(
        self,
        world: World,
        line: Line,
        mode: Mode,
        *,
        command: commands.Command | None = None,
        watch: Callable[[Operation], None] | None = None,
        permit: Callable[[Operation], None] | None = None,
    ) -> None:
        """`permit` raises `Refused` where another attempt is not allowed now; `run` asked before it declared."""
        self._world, self._line, self._mode = world, line, mode
        self._permit = permit
        self._runner = Runner(world)
        self._command, self._watch = command, watch
        self.operation_id: str | None = None
        self.continued = False
        self._secret_unchecked = False
        self._tries = 0
        self._runs = 0
        self._started: float | None = None

    async def run(self, intent: Intent) -> Answer:
        """`sshop run`: declare, attempt, and recover as far as the mode allows. A cancellation detaches.

        Raises `Refused`; `LedgerError` where nothing was dispatched.
        """
        admitted, attempt_id = self._runner.declare(intent)
        self.operation_id = _present(admitted.operation).operation_id
        self.continued = admitted.way is not Way.CREATE
        self._command = intent.command
        return await self._guarded(self._admitted(admitted, attempt_id))

    async def _guarded(self, way: Coroutine[None, None, Answer]) -> Answer:
        """What the ledger knows is the answer where the call is told to stop, and where the ledger itself fails after
        something was dispatched.
        """
        known = self._world.operation(_present(self.operation_id))
        try:
            return await way
        except asyncio.CancelledError:
            operation = self._world.operation(known.operation_id)
            answer = Answer(operation, left=True)
            ends = "what runs on the host goes on" if operation.dispatched else "nothing was sent"
            answer.fail("unknown" if operation.dispatched else "not_sent", "interrupted", f"told to stop; {ends}")
            return self._with_exit(answer)
        except errors.LedgerError as error:
            if not known.dispatched and not self._runs:
                raise
            hint = "mend the ledger, then `sshop reconcile` the operation"
            return Answer(known).fail("unknown", error.code, error.message, hint)

    async def _admitted(self, admitted: Admission, attempt_id: str | None) -> Answer:
        operation = _present(admitted.operation)
        if admitted.secret_unchecked:
            return await self._with_secret_unchecked(operation, admitted.way)
        if attempt_id is not None:
            grounds = Grounds(generation=max(1, operation.generation))
            return await self.settle(await self._attempt(operation, attempt_id, grounds))
        if admitted.way is Way.ANSWER:
            return await self._stored(operation)
        if admitted.way is Way.ATTACH:
            return await self.settle(await self._attach(operation))
        return await self.settle(Answer(operation))

    async def _with_secret_unchecked(self, operation: Operation, way: Way) -> Answer:
        """Its secrets were fingerprinted under another key: what is known is answered, and nothing runs."""
        self._secret_unchecked = True
        if way is Way.ANSWER:
            return await self._stored(operation)
        answer = Answer(operation)
        if operation.dispatched and operation.category != Category.READ_ONLY:
            answer = await self._look(operation)
        if answer.operation is not None and answer.operation.resolved:
            return await self._close(answer)
        answer.fail("key_conflict", "secret_unchecked", UNCHECKED, "a new operation (leave out --op) may run it")
        return self._with_exit(answer)

    async def replay(self, operation: Operation) -> Answer:
        """Reconcile, then go on as the table allows. A cancellation detaches.

        Raises `Refused` (`not_the_owner`); `LedgerError` where nothing was dispatched.
        """
        self.operation_id = operation.operation_id
        return await self._guarded(self._replayed(operation))

    async def _replayed(self, operation: Operation) -> Answer:
        if operation.resolved:
            return self._with_exit(Answer(operation))
        if admission.live_attempt(operation, self._world.alive) is not None:
            raise errors.Refused(
                Refusal.NOT_THE_OWNER,
                f"another process is at work on operation {operation.operation_id}",
                operation_id=operation.operation_id,
            )
        self._world.ledger.append(lambda view: self._runner.take_over(_present(view.operation(operation.operation_id))))
        operation = self._world.operation(operation.operation_id)
        answer = Answer(operation)
        if operation.dispatched and operation.category != Category.READ_ONLY:
            answer = await self._look(operation)
        return await self.settle(answer)

    async def settle(self, answer: Answer) -> Answer:
        """Go by the table until the operation is resolved, a person is needed, or the mode ends."""
        heard = False  # the last step was a look that was answered
        while not self._finished(answer):
            operation = _present(answer.operation)
            known = Situation.TEMPORARY if answer.temporary else recovery.situation(operation, answer.lost_store)
            row = recovery.decide(operation, known)
            if row.step is Step.STOP:
                answer = self._stopped(operation, answer, row)
                break
            if row.step is Step.PROBE:
                if self._mode.recover == "none":
                    break
                if await probe.probe_condition(self._world, self._line, operation, self._command):
                    answer = Answer(self._world.operation(operation.operation_id))
                else:
                    answer = self._stopped(operation, answer, recovery.PROBED_IN_VAIN[known])
                break
            if heard and row.step is Step.LOOK:
                break  # the host said what it knows
            if not self._allowed(operation, known, row):
                break
            if not await self._pause(answer, row):
                break
            answer = await self._go_on(operation, row, answer)
            heard = row.step is Step.LOOK and not answer.retry
        return await self._close(answer)

    def _finished(self, answer: Answer) -> bool:
        operation = answer.operation
        if operation is None or operation.resolved or answer.left:
            return True
        if answer.code is not None and answer.code.startswith("ledger"):
            return True
        if answer.lost_store is not None and operation.dispatched:
            return False  # a probe may still tell, else the table names what stops it
        return answer.exit in FINAL_EXITS and not answer.retry

    def _allowed(self, operation: Operation, known: Situation, row: Recovery) -> bool:
        """Whether the mode lets this step be taken in this call."""
        if self._mode.recover == "none":
            return False
        harmless = known is Situation.NOTHING_DISPATCHED or operation.category == Category.READ_ONLY
        return row.step is Step.LOOK or self._mode.recover == "auto" or harmless

    async def _pause(self, answer: Answer, row: Recovery) -> bool:
        """Space tries out, with jitter; False where this call has had enough of those that were not sent.

        What was dispatched and lost is looked at without delay, and what a look then allows follows at once.
        """
        if answer.retry:
            self._tries += 1
            if self._tries >= self._mode.tries:
                return False
            step = self._tries
        elif row.step is Step.RUN and (answer.temporary or row.decision is RetryDecision.READ_ONLY):
            step = self._runs
        else:
            return True
        if step > 0:
            pause = min(self._mode.longest_pause_s, self._mode.first_pause_s * 2 ** (step - 1))
            await self._world.clock.sleep(pause * (0.5 + self._world.ids.jitter()))
        return True

    async def _go_on(self, operation: Operation, row: Recovery, answer: Answer) -> Answer:
        if row.step is Step.LOOK:
            return await self._look(operation)
        grounds = Grounds(
            reason=recovery.reason(operation, operator=self._mode.operator),
            decision=row.decision,
            generation=max(1, operation.generation) + row.generation_step,
            ground=row.ground,
            why=row.why,
        )
        command = self._command or commands.from_json(operation.command)
        try:
            if self._permit is not None:
                self._permit(operation)
            attempt_id = self._runner.open_attempt(operation, command, grounds)
        except errors.Refused as refused:
            if self._world.operation(operation.operation_id).resolved:
                return Answer(self._world.operation(operation.operation_id))
            exit_name, answer.retry = REFUSAL_EXIT.get(refused.refusal, "not_owner"), False
            return answer.fail(exit_name, refused.refusal, refused.message, refused.hint)
        return await self._attempt(operation, attempt_id, grounds, command)

    async def _attempt(
        self, operation: Operation, attempt_id: str, grounds: Grounds, command: commands.Command | None = None
    ) -> Answer:
        command = command or self._command or commands.from_json(operation.command)
        final = operation.dispatch_count + 1 >= operation.budget or self._mode.recover != "auto"
        trial = Trial(
            self._world,
            operation.operation_id,
            attempt_id,
            command,
            self._line,
            grounds=grounds,
            wait_s=self._mode.wait_s if self._started is None else self._left(),
            final=final,
            watch=self._watch,
        )
        answer = await trial.run()
        if self._started is None:
            self._started = trial.claimed_at
        if answer.operation is not None and answer.operation.dispatched:
            self._runs += 1
        if answer.code == "response_lost":
            answer.retry = False  # the next step is a look, whose own failures are counted
        return answer

    async def _look(self, operation: Operation) -> Answer:
        final = self._mode.recover != "auto" or operation.dispatch_count >= operation.budget
        return await reconcile.look(self._world, self._line, operation, wait_s=self._left(), final=final)

    def _left(self) -> float | None:
        if self._mode.wait_s is None:
            return None
        now = self._world.clock.monotonic()
        if self._started is None:
            self._started = now
        return max(0.0, self._mode.wait_s - (now - self._started))

    async def _attach(self, operation: Operation) -> Answer:
        """Wait for what another living process has in flight, and take its one result."""
        pause = 0.05
        while True:
            current = self._world.operation(operation.operation_id)
            left = self._left()
            if current.resolved:
                return await self._stored(current)
            if admission.live_attempt(current, self._world.alive) is None:
                self._world.ledger.append(
                    lambda view: self._runner.take_over(_present(view.operation(operation.operation_id)))
                )
                return Answer(self._world.operation(operation.operation_id))
            if left is not None and left <= 0:
                answer = Answer(current, left=True)
                return answer.fail("running", "in_flight", "another process has an attempt of it in flight")
            await self._world.clock.sleep(pause)
            pause = min(1.0, pause * 1.5)

    async def _stored(self, operation: Operation) -> Answer:
        """The answer of an operation that is resolved already; its output comes from the host, where that answers."""
        operation = replace(operation, replayed=True)
        answer = Answer(operation)
        result = operation.result
        wanted = result is not None and operation.category != Category.READ_ONLY
        if wanted and result is not None and result.stdout_bytes + result.stderr_bytes > 0:
            heard = await ask(self._line, question(self._world, operation, "inquire", wait_s=0), patience=30)
            if heard.frame is not None and heard.frame.word == "result" and heard.frame.get("rec") == result.record_id:
                answer.stdout, answer.stderr = heard.stdout, heard.stderr
        elif wanted:
            answer.stdout = answer.stderr = b""
        return self._with_exit(answer)

    def _stopped(self, operation: Operation, answer: Answer, row: Recovery) -> Answer:
        assert row.refusal is not None
        if operation.refusal != row.refusal:
            body = events.RetryRefused(row.refusal, row.why)
            self._world.append([self._world.draft(body, operation.operation_id)])
        answer.operation = self._world.operation(operation.operation_id)
        if answer.lost_store is not None and answer.code is not None:
            return answer
        exit_name = REFUSAL_EXIT.get(row.refusal, "unknown")
        return answer.fail(exit_name, row.refusal, row.why, f"sshop show {operation.operation_id}")

    async def _close(self, answer: Answer) -> Answer:
        """Resolve a temporary failure that gets no further attempt, check the contract, and name the exit."""
        operation = answer.operation
        if operation is not None and answer.temporary and not operation.resolved and operation.result is not None:
            why = f"exit status {operation.result.status}, declared as temporary, and no attempt is left"
            body = events.OperationResolved(
                State.FAILED, "result", operation.result.record_id, operation.generation, None, operation.contract, why
            )
            self._world.append([self._world.draft(body, operation.operation_id)])
            answer.operation = operation = self._world.operation(operation.operation_id)
        if operation is not None and operation.state == State.SUCCEEDED and operation.contract == "unchecked":
            answer.operation = await probe.verify(self._world, self._line, operation)
        return self._with_exit(answer)

    def _with_exit(self, answer: Answer) -> Answer:
        operation = answer.operation
        foreign = operation is not None and of_another_ledger(operation)
        if answer.code is None and operation is not None and operation.resolved and (self._secret_unchecked or foreign):
            answer.code, answer.message = "secret_unchecked", UNCHECKED
        answer.exit = exit_name(answer)
        return answer


def _present(value: T | None) -> T:
    assert value is not None
    return value
