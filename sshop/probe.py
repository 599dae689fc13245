"""Conditions evaluated on a host as read-only commands are run: what they say is appended as an observation."""

from __future__ import annotations

import hashlib

from sshop.conversation import Line
from sshop.core import command as commands
from sshop.core import events, outcome, protocol
from sshop.core.operation import Category, Contract, Operation, State
from sshop.core.protocol import Request
from sshop.core.value import replace
from sshop.question import ask
from sshop.world import World


async def probe(
    world: World, line: Line, operation: Operation, argv: commands.Command, timeout_s: int | None = None
) -> tuple[int | None, str]:
    """Evaluate a condition as a read-only command is run; its exit status, None where there is no answer."""
    if not argv.complete:
        return None, "a secret of the operation is not at hand"
    request = Request(
        verb="probe",
        nonce=world.ids.nonce(),
        operation_id=operation.operation_id,
        clock=world.clock.now(),
        command=argv,
        category=Category.READ_ONLY,
        timeout_s=timeout_s or operation.terms.timeout_s,
        inline_bytes=4096,
    )
    heard = await ask(line, request)
    if heard.frame is None or heard.frame.word != "result":
        why = heard.frame.message if heard.frame is not None else str(heard.error or "no answer")
        return None, why or "no answer"
    result = protocol.result(heard.frame)
    return result.status, f"exit status {result.status}"


async def probe_condition(
    world: World, line: Line, operation: Operation, command: commands.Command | None = None
) -> bool | None:
    """Whether the condition of a convergent operation holds now; None where that cannot be told. Appended either way.

    Where it holds, the operation is resolved as succeeded.
    """
    command = command or commands.from_json(operation.command)
    if not command.condition:
        return None
    condition = replace(command, argv=command.condition, condition=(), stdin=None)
    status, text = await probe(world, line, operation, condition)
    holds = None if outcome.says_nothing(status) else status == 0
    observation = world.ids.mint("obs")
    why = f"the condition {'holds' if holds else 'does not hold' if holds is False else 'could not be told'}: {text}"
    bodies: list[events.AnyBody] = [
        _probed(operation, observation, "probe", match="converged_when", changed=bool(holds), why=why)
    ]
    if holds:
        bodies.append(
            events.OperationResolved(State.SUCCEEDED, "probe", None, None, observation, operation.contract, why)
        )
    world.append([world.draft(body, operation.operation_id) for body in bodies])
    return holds


def _probed(
    operation: Operation, observation: str, kind: str, *, match: str, changed: bool, why: str
) -> events.LookupPerformed:
    return events.LookupPerformed(
        observation_id=observation,
        kind=kind,
        query_fingerprint=hashlib.sha256(f"{kind} {operation.fingerprint}".encode()).hexdigest(),
        endpoint=operation.account.key,
        store_id=None,
        match=match,
        host_state=None,
        generation=None,
        record_id=None,
        changed=changed,
        why=why,
    )


async def verify(world: World, line: Line, operation: Operation) -> Operation:
    """Check the result contract of a succeeded operation, and append what the check said."""
    terms = operation.terms
    if terms.verify is None or operation.state != State.SUCCEEDED:
        return operation
    status, text = await probe(world, line, operation, commands.from_json(terms.verify), terms.verify_timeout_s)
    if outcome.says_nothing(status) and status != terms.verify_exit:
        contract = Contract.UNCHECKED
    else:
        contract = Contract.SATISFIED if status == terms.verify_exit else Contract.VIOLATED
    observation = world.ids.mint("obs")
    why = f"the result contract is {contract}: {text}"
    body = _probed(operation, observation, "verify", match=contract, changed=True, why=why)
    world.append([world.draft(body, operation.operation_id)])
    return world.operation(operation.operation_id)
