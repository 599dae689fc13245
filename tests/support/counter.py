"""COUNT: a command whose number of executions can be read off the disk."""

import shlex
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Counter:
    """A file that grows by one byte each time the command runs (O_APPEND, so that racing runs all count)."""

    path: Path

    @property
    def shell(self) -> str:
        """The increment as shell text, for a longer script to begin with."""
        return f"printf x >>{shlex.quote(str(self.path))}"

    def argv(self, then: str = "") -> tuple[str, ...]:
        """A command that counts itself and goes on with the shell text `then`."""
        return ("/bin/sh", "-c", f"{self.shell}; {then}" if then else self.shell)

    @property
    def hold(self) -> str:
        """Shell text that waits for `release`."""
        return f"until test -e {shlex.quote(str(self.path))}.go; do sleep 0.1; done"

    def release(self) -> None:
        Path(f"{self.path}.go").touch()

    @property
    def count(self) -> int:
        """How often it has run by now."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def wait_for(self, count: int, limit_s: float = 10.0) -> None:
        """Return when it has run `count` times; TimeoutError after `limit_s` seconds."""
        end = time.monotonic() + limit_s
        while self.count < count:
            if time.monotonic() > end:
                msg = f"{self.path} counts {self.count}, not {count}, after {limit_s} s"
                raise TimeoutError(msg)
            time.sleep(0.005)
