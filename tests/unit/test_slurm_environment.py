"""What the environment of a Slurm job tells, and which share of the work is whose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from distlfm.cluster.blocks.ledger import Share, share_of
from distlfm.cluster.slurm import allocation as slurm_watch
from distlfm.cluster.slurm.allocation import FIRST_PORT, PORTS, array_share, find_allocation, job_facts
from distlfm.errors import UsageError
from distlfm.runtime.process import expand_hosts

JOB = {
    "SLURM_JOB_ID": "31007",
    "SLURM_JOB_NODELIST": "gpu[08-10,12],login",
    "SLURM_NTASKS": "10",
    "SLURM_RESTART_COUNT": "2",
}


@pytest.mark.parametrize(
    ("names", "hosts"),
    [
        ("n1", ("n1",)),
        ("n1,n2", ("n1", "n2")),
        ("gpu[08-10,12],login", ("gpu08", "gpu09", "gpu10", "gpu12", "login")),
        ("rack[1-2]n[3,5]", ("rack1n3", "rack1n5", "rack2n3", "rack2n5")),
        ("cn-[98-101].site.org", ("cn-98.site.org", "cn-99.site.org", "cn-100.site.org", "cn-101.site.org")),
    ],
)
def test_lists_of_hosts_are_read_as_slurm_writes_them(names: str, hosts: tuple[str, ...]) -> None:
    assert expand_hosts(names) == hosts


@pytest.mark.parametrize("names", ["", "n[1-]", "n[a-b]", ","])
def test_a_list_that_names_no_hosts_is_refused(names: str) -> None:
    with pytest.raises(UsageError, match="list of hosts"):
        expand_hosts(names)


def test_an_allocation_is_read_from_the_environment_and_its_port_follows_from_the_job() -> None:
    found = find_allocation(JOB)
    assert found is not None
    assert found.nodes == ("gpu08", "gpu09", "gpu10", "gpu12", "login")
    assert (found.job, found.tasks, found.restarts, found.port) == ("31007", 10, 2, FIRST_PORT + 31007 % PORTS)
    assert found.words == "job 31007 on 5 nodes (gpu08,gpu09,gpu10,gpu12,login), begun for the 3. time"
    assert find_allocation({}) is None


def test_a_task_of_an_array_has_a_name_of_its_own_and_a_port_of_its_own() -> None:
    array = {**JOB, "SLURM_ARRAY_JOB_ID": "40"}
    tasks = [{**array, "SLURM_JOB_ID": f"4{task}", "SLURM_ARRAY_TASK_ID": task} for task in "01"]
    found = [find_allocation(task) for task in tasks]
    assert [one.job for one in found if one] == ["40_0", "40_1"]
    assert len({one.port for one in found if one}) == 2


def array_task(number: int, first: int, last: int, count: int, step: int = 1) -> dict[str, str]:
    told = {"ID": number, "MIN": first, "MAX": last, "COUNT": count, "STEP": step}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in told.items()}


def test_tasks_of_an_array_have_the_parts_of_the_whole() -> None:
    assert [array_share(array_task(n, 0, 3, 4)) for n in range(4)] == [Share(n, 4) for n in (1, 2, 3, 4)]
    assert array_share(array_task(5, 1, 9, 3, 4)) == Share(2, 3)
    assert array_share(array_task(7, 7, 7, 1)) == Share(1, 1), "a task that is sent alone does all that is left"


def test_an_array_with_holes_is_refused_as_parts_would_be_left_out() -> None:
    with pytest.raises(UsageError, match="holes"):
        array_share(array_task(2, 0, 5, 3))
    with pytest.raises(UsageError, match="not a task of a Slurm array"):
        array_share(JOB)


@given(some.integers(1, 200), some.integers(1, 30))
def test_every_block_belongs_to_exactly_one_part(num_blocks: int, parts: int) -> None:
    shares = [block for part in range(1, parts + 1) for block in Share(part, parts).blocks(num_blocks)]
    assert sorted(shares) == list(range(num_blocks))


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "a/b", "1/0", "-1/2"])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a part"):
        share_of(text)


def test_a_part_is_read_as_it_is_written() -> None:
    assert str(share_of(" 2/16")) == "2/16"


def test_facts_of_a_job_are_read_by_name() -> None:
    facts = job_facts("JobId=2 JobName=fit JobState=RUNNING Reason=None NodeList=n2 BatchHost=n1 Command=/a b=c")
    assert (facts["JobState"], facts["NodeList"]) == ("RUNNING", "n2")


class Controller:
    """Answers for Slurm, one answer a look; the last one for ever. refusals: how often it does not requeue."""

    def __init__(self, *answers: str | None, refusals: int = 0) -> None:
        self.answers, self.refusals, self.asked, self.pauses = list(answers), refusals, list[str](), 0

    def ask(self, *words: str) -> str | None:
        if "show" in words:
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.asked.append(" ".join(words))
        self.refusals -= 1
        return None if self.refusals >= 0 else ""

    def pause(self, _: float) -> bool:
        self.pauses += 1
        return self.pauses > 100


WHOLE, HEADLESS, OVER = (
    f"JobId=17 JobState={state} NodeList={nodes} "
    for state, nodes in (("RUNNING", "n[1-3]"), ("RUNNING", "n[2-3]"), ("COMPLETING", "n[2-3]"))
)


@pytest.mark.parametrize(
    ("me", "controller", "again", "asked", "pauses"),
    [
        pytest.param("n2", Controller(HEADLESS), True, ["scontrol requeue 17"], 0, id="at once"),
        pytest.param("n2", Controller(WHOLE, None, HEADLESS), True, ["scontrol requeue 17"], 2, id="when Slurm knows"),
        pytest.param("n2", Controller(HEADLESS, refusals=2), True, ["scontrol requeue 17"] * 3, 2, id="until it works"),
        pytest.param("n3", Controller(HEADLESS), True, ["scontrol requeue 17"], 4, id="by the next one, later"),
        pytest.param("n3", Controller(HEADLESS, HEADLESS, OVER), True, [], 2, id="not if another one did"),
        pytest.param("n2", Controller(HEADLESS), False, ["scancel 17"], 0, id="against the site's will"),
    ],
)
def test_the_nodes_that_are_left_queue_a_job_again_that_has_lost_its_first_one(
    me: str, controller: Controller, again: bool, asked: list[str], pauses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_watch, "_ask", controller.ask)
    assert slurm_watch.look_after("17", "n1", me, controller.pause, again) == bool(asked)
    assert (controller.asked, controller.pauses) == (asked, pauses)
