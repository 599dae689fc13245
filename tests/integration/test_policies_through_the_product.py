"""Every shipped command whose tool can be had, by `sshop run` on a host: the first run and the second."""

import pytest

from sshop.core.operation import Contract, State
from sshop.errors import Refused
from tests.support import private_host
from tests.support.entry_on_host import entry_on_host, told
from tests.support.policy_rows import POLICY, of_category


@pytest.mark.parametrize("name", of_category("convergent"))
async def test_a_convergent_command_changes_something_once(name, tmp_path):
    with entry_on_host(name, tmp_path) as it:
        first, second = await it.run(), await it.run()
        assert (first.code, first.operation.state) == (0, State.SUCCEEDED), told(first)
        ran = first.operation.result
        assert (ran.changed, ran.after) == (True, 0)
        assert ran.before not in (0, 126, 127)
        assert second.operation.operation_id != first.operation.operation_id
        ran = second.operation.result
        assert (second.code, ran.changed, ran.status, ran.before) == (0, False, None, 0), told(second)
        it.check()


@pytest.mark.parametrize("name", of_category("append_only"))
async def test_an_appending_command_adds_one_each_time(name, tmp_path):
    with entry_on_host(name, tmp_path) as it:
        for count in (1, 2):
            done = await it.run()
            assert (done.code, done.operation.state) == (0, State.SUCCEEDED), told(done)
            declared = it.made.verify is not None
            assert done.operation.contract == (Contract.SATISFIED if declared else Contract.NOT_DECLARED), told(done)
            assert it.count() in (count, None)
        it.check()


@pytest.mark.parametrize("name", of_category("destructive"))
async def test_a_destructive_command_needs_a_person_and_keeps_its_contract(name, tmp_path):
    with entry_on_host(name, tmp_path) as it:
        approved, it.program.policy = it.program.policy, POLICY
        with pytest.raises(Refused) as refused:
            await it.run()
        assert refused.value.code == "approval_required"
        assert it.markers() == []
        it.program.policy = approved
        first, again = await it.run(), await it.run()
        assert (first.code, first.operation.state) == (0, State.SUCCEEDED), told(first)
        assert first.operation.contract == (Contract.SATISFIED if it.made.verify else Contract.NOT_DECLARED)
        assert again.operation.result.status in it.row.again, told(again)
        assert again.code == (1 if again.operation.result.status else 0)
        it.check()


@pytest.mark.parametrize("name", of_category("read_only"))
async def test_a_looking_command_shows_something_and_changes_nothing(name, tmp_path):
    with entry_on_host(name, tmp_path) as it:
        done = await it.run()
        assert (done.code, done.operation.state) == (0, State.SUCCEEDED), told(done)
        assert done.answer.stdout
        mark = private_host.BASE / "mark"
        it.host.shell(f"sleep 0.05; touch {mark}; sleep 0.05")
        again = await it.run()
        assert (again.code, bool(again.answer.stdout)) == (0, True)
        left = f"find {private_host.CHANGES} -newer {mark} ! -path '*/srv/pg*' ! -path '*/.sshop*' ! -path '*/sudo*'"
        assert it.host.shell(left) == ""
        assert it.markers() == []
