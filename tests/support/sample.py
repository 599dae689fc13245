"""A seeded sample of a long enumeration, or the whole of it under `make faults`."""

import os
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

SEED = "SSHOP_SEED"
WHOLE = "SSHOP_WHOLE"


def settle_seed() -> str:
    """The seed of this test run; made once, and inherited by worker processes through the environment."""
    return os.environ.setdefault(SEED, str(random.SystemRandom().randrange(10**9)))


def sample(points: Sequence[T], size: int, *, salt: str = "", whole: int | None = None) -> list[T]:
    """`size` of the points, in their order; all of them, or `whole` of them, where SSHOP_WHOLE is set.

    `salt` (a test's name, say) makes two enumerations of one run choose differently.
    """
    if os.environ.get(WHOLE):
        size = len(points) if whole is None else whole
    if size >= len(points):
        return list(points)
    chosen = random.Random(f"{settle_seed()} {salt}").sample(range(len(points)), size)
    return [points[index] for index in sorted(chosen)]
