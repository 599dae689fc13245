"""Every shipped command whose tool can be had, with guard, command and login killed while it is at work.

Before it acted, and after it acted and before its exit was recorded: what converges goes on by itself, of all else a
person decides. Whole in `make faults`; a seeded sample in `make test`.
"""

import pytest

from sshop.core.operation import State
from tests.support.entry_on_host import entry_on_host, told
from tests.support.policy_rows import ROWS, of_category
from tests.support.sample import sample

CONVERGENT = of_category("convergent")
ONCE = [name for name in ROWS if name in {*of_category("append_only"), *of_category("destructive")}]


@pytest.mark.parametrize("name", sample(CONVERGENT, 8, salt="before"))
async def test_a_convergent_command_that_did_nothing_is_run_in_the_next_generation(name, tmp_path):
    with entry_on_host(name, tmp_path) as it:
        done = await it.run_into("before")
        assert (done.code, done.operation.state) == (0, State.SUCCEEDED), told(done)
        ran = done.operation.result
        assert (ran.generation, ran.changed, ran.after) == (2, True, 0), told(done)
        assert it.started() == 2
        it.check()
        again = await it.run()
        assert (again.code, again.operation.result.changed) == (0, False), told(again)


@pytest.mark.parametrize("name", sample(CONVERGENT, 8, salt="after"))
async def test_a_convergent_command_that_acted_is_found_done_and_not_run_again(name, tmp_path):
    with entry_on_host(name, tmp_path) as it:
        done = await it.run_into("after")
        assert (done.code, done.operation.state) == (0, State.SUCCEEDED), told(done)
        assert it.started() == 1
        it.check()


@pytest.mark.parametrize(("name", "at"), sample([(name, at) for name in ONCE for at in ("before", "after")], 8))
async def test_what_acts_once_stops_for_a_person(name, at, tmp_path):
    with entry_on_host(name, tmp_path) as it:
        done = await it.run_into(at)
        assert (done.code, done.operation.state) == (5, State.UNKNOWN), told(done)
        counted = it.count()
        assert counted in ((0, None) if at == "before" else (1, None))
        replayed = await it.program.replay(done.operation.operation_id)
        assert (replayed.code, replayed.operation.state) == (5, State.UNKNOWN), told(replayed)
        assert len(replayed.operation.attempts) == it.started() == 1
        assert it.count() == counted
        assert len(it.markers()) == 1
