"""Questions to a host about an operation, and what is heard: they act on nothing but its name.

What an answer means for the operation is concluded in `sshop.reconcile` and `sshop.probe`.
"""

from __future__ import annotations

import asyncio

from sshop import errors
from sshop.conversation import Conversation, Line
from sshop.core import command as commands
from sshop.core import events
from sshop.core.operation import Category, Operation
from sshop.core.protocol import Frame, Hello, Request, Verb
from sshop.core.value import Value
from sshop.world import World


class Heard(Value):
    """What came back: the guard's first line, the frame that settles the question, and the output."""

    hello: Hello | None
    frame: Frame | None
    stdout: bytes = b""
    stderr: bytes = b""
    running: bool = False
    error: errors.SshopError | None = None


async def ask(line: Line, request: Request, *, patience: float | None = None) -> Heard:
    """One request that acts on nothing but the name, to its end. An error of the way is handed back, not raised.

    `patience` bounds the wait for an operation that is running, in seconds.
    """
    talk = Conversation(line, request)
    hello: Hello | None = None
    frame: Frame | None = None
    running = False
    output = {"out": bytearray(), "err": bytearray()}
    try:
        first = await talk.begin()
        if isinstance(first, Frame):
            return Heard(None, first)
        hello = first
        await talk.spool()
        await talk.go()
        async with asyncio.timeout(patience):
            async for batch in talk.frames():
                for item in batch:
                    match item.word:
                        case "data":
                            output["err" if item.get("stream") == "err" else "out"].extend(item.data or b"")
                        case "running":
                            running = True
                        case "result" | "no" | "state" | "fenced" | "cancelling" | "acked":
                            frame = item
                        case _:
                            pass
    except TimeoutError:
        line.drop()
        silence = None if running else errors.LinkIdle("the host said nothing in time")
        return Heard(hello, None, running=running, error=silence)
    except (errors.LinkLost, errors.ProtocolError) as error:
        line.drop()
        return Heard(hello, None, running=running, error=error)
    except errors.NotSent as error:
        return Heard(hello, None, error=error)
    finally:
        await talk.close()
    return Heard(hello, frame, bytes(output["out"]), bytes(output["err"]), running and frame is None)


def question(world: World, operation: Operation, verb: Verb, *, wait_s: int | None = None) -> Request:
    """A request about an operation, with what was promised of its store."""
    store = world.ledger.store(operation.account.key) if operation.category != Category.READ_ONLY else None
    return Request(
        verb=verb,
        nonce=world.ids.nonce(),
        operation_id=operation.operation_id,
        clock=world.clock.now(),
        command=commands.from_json(operation.command),
        category=operation.category,
        generation=max(1, operation.generation),
        claim_seen=operation.claim_seen,
        store_id=operation.store_id or (store.store_id if store else None),
        inline_bytes=operation.terms.max_output,
        wait_s=wait_s,
    )


async def acknowledge(world: World, line: Line, operation: Operation) -> bool:
    """Tell the host, over a channel of its own, that a resolved operation's record is safe here. Never raises."""
    record = operation.result.record_id if operation.result else operation.records[-1] if operation.records else None
    if record is None:
        return False
    request = Request(
        verb="ack",
        nonce=world.ids.nonce(),
        operation_id=operation.operation_id,
        record_id=record,
        command=commands.from_json(operation.command),
    )
    heard = await ask(line, request)
    if heard.frame is None or heard.frame.word != "acked":
        return False
    try:
        world.append([world.draft(events.OperationAcknowledged(record), operation.operation_id)])
    except errors.LedgerError:
        return False
    return True


class Acknowledgement(Value):
    """An acknowledgement that is still to be made, once the person has the answer."""

    world: World
    line: Line
    operation: Operation

    async def __call__(self) -> None:
        await acknowledge(self.world, self.line, self.operation)
