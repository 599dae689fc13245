"""The product inside one process: a word on standard input, seconds on standard output.

`bare` runs `true` on the standing connection without a guard, `warm` a guarded run on it, `cold` a guarded run on a
connection of its own, each up to the answer. Run by the bench's interpreter with the host's name and the command's.
"""

import asyncio
import os
import sys
import time

from sshop.bootstrap import App
from sshop.conversation import Line
from sshop.intent import intend
from sshop.ports import Limits
from sshop.replay import Course, Mode


class Inside:
    def __init__(self, host: str, words: list[str]) -> None:
        self._app = App(os.environ)
        self._policy = self._app.policy()
        self._account, self._root = self._app.account(host)
        self._words = words
        self._world = self._app.world(Limits())
        self._line = self.line()

    def line(self) -> Line:
        return self._world.line(self._account, self._root)

    async def guarded(self, line: Line) -> float:
        start = time.perf_counter()
        intent = intend(self._policy, self._account, self._root, self._words, raw=None, shell=None, stdin=None,
                        note=None, new=False, operation_id=None, read_secret=lambda _: b"",
                        read_file=lambda _: None)  # fmt: skip
        answer = await Course(self._world, line, Mode(), command=intent.command).run(intent)
        took = time.perf_counter() - start
        assert answer.exit == "succeeded", (answer.code, answer.message)
        assert answer.after is not None
        await answer.after()
        return took

    async def cold(self) -> float:
        line = self.line()
        try:
            return await self.guarded(line)
        finally:
            await line.close()

    async def warm(self) -> float:
        return await self.guarded(self._line)

    async def bare(self) -> float:
        connection = await self._line.connect()
        start = time.perf_counter()
        done = await connection.raw.run("true")
        took = time.perf_counter() - start
        assert done.exit_status == 0
        return took

    async def serve(self) -> None:
        acts = {"cold": self.cold, "warm": self.warm, "bare": self.bare}
        while word := (await asyncio.to_thread(sys.stdin.readline)).strip():
            print(await acts[word](), flush=True)
        await self._line.close()
        self._app.close()


if __name__ == "__main__":
    asyncio.run(Inside(sys.argv[1], sys.argv[2:]).serve())
