"""Four sites and a link as real processes: rounds, questions, doors, and what survives a kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import yaml
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.runtime import RuntimeHttpClient

from distlfm.errors import WorkError
from distlfm.federated.link.processes import environment
from distlfm.federated.link.status import status
from distlfm.federated.setup.enrolment import revoke
from distlfm.federated.site.work import open_operator
from distlfm.federated.site.worktime import Runs
from tests.support.federation_guide import documented, shown
from tests.support.fleet_runs import all_gone, driving
from tests.support.foreign_bundle import start_foreign
from tests.support.importing import ROOT
from tests.support.real_sites import SITES, WATCHED, Background, Federation, events, start_role, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HOSTILE = ROOT / "tests" / "support" / "hostile_link.py"


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """No process of it may connect to anything but this machine, as noted by an audit hook from its first line on."""
    made = Federation(tmp_path_factory.mktemp("real"))
    try:
        made.start("link")
        prepare = documented("prepare", places={"federation/north": made.sites["north"].path})
        assert "are fitted" in subprocess.run(prepare, capture_output=True, text=True, check=True).stdout
        yield made
    finally:
        made.close()
    noted = {line.split(" ", 1)[1] for line in made.connections.read_text().splitlines()}
    assert "127.0.0.1" in noted
    assert {name for name in noted if name not in ("127.0.0.1", "localhost") and not name.startswith("/")} == set()


@pytest.fixture
def federation(started: Federation) -> Federation:
    """Whole, whatever the test before has killed."""
    started.mend()
    return started


def test_every_command_of_the_guide_is_one_that_runs_here() -> None:
    verbs = [" ".join(words[:2] if words[0] == "query" else words[:1]) for words in shown()]
    assert verbs == ["link", "prepare", "site", "run", "run", "query cohort", "query patient.csv"]


@pytest.fixture(scope="module")
def first(started: Federation) -> dict[str, Any]:
    """What an undisturbed run brings; `commands` are those of all processes while it ran."""
    started.mend()
    north = started.sites["north"]
    known = len(events(north, "mask"))
    background = Background(started, started.programme(1), "first")
    wait_until(lambda: len(events(north, "mask")) > known, why=lambda: started.log_of("north"))
    pids = set().union(*(started.family(role) for role in ("link", *SITES)))
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids if Path(f"/proc/{pid}/cmdline").exists()]
    return {"result": background.wait(), "commands": commands}


def test_a_secure_round_of_four_sites_makes_a_new_common_operator(
    federation: Federation, first: dict[str, Any]
) -> None:
    content = first["result"].content
    assert [line["sites"] for line in content["history"]] == [4]
    before = open_operator(federation.operator).model.state_dict()
    after = open_operator(Path(content["operator"])).model.state_dict()
    moved = [name for name, tensor in before.items() if not torch.equal(tensor, after[name])]
    assert moved
    assert all(bool(torch.isfinite(after[name]).all()) for name in moved)


def test_all_logs_tell_of_the_run_under_one_id(federation: Federation, first: dict[str, Any]) -> None:
    run = str(first["result"].run)
    [started] = (entry for entry in events(federation.link, "run started") if entry["run"] == run)
    assert (started["run"], started["facts"]["by"], started["facts"]["name"]) == (run, "admin", "first")
    for home in federation.sites.values():
        masked, handed = (entry for entry in events(home, "mask") if entry["run"] == run)
        assert masked["facts"]["bytes"] > handed["facts"]["bytes"] > 0  # of the update, and that it has the model
        assert len(masked["facts"]["sha256"]) == 64
    sums = [entry for entry in events(federation.link, "sum") if entry["run"] == run]
    assert sums
    for entry in sums:
        assert entry["facts"]["sent"] > 0
        assert entry["facts"]["received"] > 0
        assert len(entry["facts"]["sha256"]) == 64


def test_every_site_has_a_copy_of_its_own_of_the_runs_model(federation: Federation, first: dict[str, Any]) -> None:
    for home in federation.sites.values():
        open_operator(home.path / "model" / "operator.pt")


def test_no_token_or_key_stands_on_a_command_line(federation: Federation, first: dict[str, Any]) -> None:
    shown = b"\n".join(first["commands"])
    assert shown.count(b"distlfm.federated.link.tasks") >= 5
    assert b"token" not in shown
    for secret in (federation.link.admin_token, *(home.secret for home in federation.sites.values())):
        assert secret.read_bytes() not in shown


def test_the_links_state_is_closed_to_other_users(federation: Federation, first: dict[str, Any]) -> None:
    files = [path for path in federation.link.state.rglob("*") if path.is_file()]
    assert federation.link.database in files
    open_ones = [path for path in files if path.stat().st_mode & 0o077 and path.name not in ("lock", "status.json")]
    assert open_ones == []


def test_a_question_is_answered_as_one_mean_over_all_sites(federation: Federation, first: dict[str, Any]) -> None:
    programme = federation.programme_file(1)
    places = {"programme.yaml": programme, "federation/link": federation.link.path, "one": "first"}
    asked = [*documented("query", "cohort", places=places), "--json"]
    answer = json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    assert 0 <= answer["missing"] <= 1
    assert all(name not in json.dumps(answer) for name in SITES)
    assert json.dumps(answer).count("[") == 0  # figures, and nothing by site


def test_a_clinicians_question_stays_at_the_site(federation: Federation, tmp_path: Path) -> None:
    home, noted = federation.sites["north"], tmp_path / "connections.txt"
    places = {"patient.csv": federation.folder / "north.zarr", "federation/north": home.path}
    verb = documented("query", places={**places, "answers": tmp_path / "answers"}, has="--site")
    around = {**os.environ, "PYTHONPATH": str(federation.folder / "watch"), WATCHED: str(noted)}
    done = subprocess.run(verb, capture_output=True, text=True, env=around)
    assert done.returncode == 0, done.stderr
    assert len(json.loads((tmp_path / "answers" / "summary.json").read_text())["instances"]) == 12
    assert not noted.exists()
    assert events(home, "local query")[-1]["facts"] == {"answers": 12, "left": "nothing"}


def test_status_tells_of_sites_and_runs(federation: Federation, first: dict[str, Any]) -> None:
    verb = [sys.executable, "-m", "distlfm", "federated", "status", "--json"]
    done = subprocess.run([*verb, str(federation.link.path)], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert {name: told["sites"][name] for name in SITES} == dict.fromkeys(SITES, "online")
    assert {str(run["run"]): run["outcome"] for run in told["runs"]}[str(first["result"].run)] == "completed"
    assert {process["state"] for process in told["processes"].values()} == {"up"}


def test_work_for_a_run_that_was_stopped_ends_at_the_sites(federation: Federation) -> None:
    """The policies would allow it and the deadline is far: the process that is connected to the link marks the run."""
    policies = {home.policy: home.policy.read_text() for home in federation.sites.values()}
    states = [Runs(home.state) for home in federation.sites.values()]
    try:
        for path, text in policies.items():
            path.write_text(yaml.safe_dump(yaml.safe_load(text) | {"task": {"steps": 10**9}}))
        background = Background(federation, federation.programme(1, deadline=400.0, task={"steps": 10**9}), "stopped")
        wait_until(lambda: all(one.under_way() for one in states), why=lambda: federation.log_of("north"))
        [run] = states[0].under_way()
        assert status(federation.sites["north"].path)["working_for"] == [run]
        with federation.control() as control:
            control.stop_run(int(run))
        wait_until(lambda: not any(one.under_way() for one in states), 60.0)
    finally:
        for path, text in policies.items():
            path.write_text(text)
    with pytest.raises(WorkError, match="stopped"):
        background.wait()
    for home in federation.sites.values():
        refused = [entry["facts"] for entry in events(home, "refused") if entry["run"] == run]
        assert [one["detail"] for one in refused] == ["The run has ended."]


def test_a_round_waits_for_a_site_that_was_killed_in_it_and_comes_back(federation: Federation) -> None:
    """It is started again at once, and let in with its key when the link has noticed that it was gone."""
    known, logged = len(events(federation.sites["west"], "shares")), len(federation.drivers["west"].text)
    background = Background(federation, federation.programme(1), "site-killed")
    wait_until(lambda: len(events(federation.sites["west"], "shares")) > known)
    federation.kill("west")
    federation.start("west")
    history = background.wait().content["history"]
    assert [line["sites"] for line in history] == [4]
    west = federation.drivers["west"]
    wait_until(lambda: "supernode is up" in west.text[logged:], why=lambda: west.text + federation.log_of("west"))
    assert federation.online() == set(SITES)


def test_a_run_ends_right_when_the_link_is_killed_in_a_round(federation: Federation) -> None:
    known = len(events(federation.sites["north"], "shares"))
    background = Background(federation, federation.programme(1), "link-killed")
    wait_until(lambda: len(events(federation.sites["north"], "shares")) > known)
    before = json.loads(federation.link.status.read_text())["processes"]["superlink"]
    os.kill(before["pid"], signal.SIGKILL)
    content = background.wait().content
    assert content["rounds"] == 1
    assert content["history"][0]["sites"] >= 3  # replies that were on their way may be lost with it
    told = json.loads(federation.link.status.read_text())["processes"]["superlink"]
    wanted = (before["starts"] + 1, -signal.SIGKILL, "up")
    assert (told["starts"], told["last_exit"], told["state"]) == wanted


def test_a_run_goes_on_after_its_last_round_when_the_whole_link_was_killed(
    federation: Federation, first: dict[str, Any], tmp_path: Path
) -> None:
    """Server, task runner and ServerApp at once, in the second round of a run; then the same from another machine."""
    programme, out = {"programme.yaml": federation.programme_file(2)}, tmp_path / "one"
    places = {**programme, "federation/link": federation.link.path, "one": "first", "runs/one": out}
    command = [*documented("run", places=places, has="--link"), "--json"]
    known, ends = len(events(federation.sites["north"], "shares")), len(events(federation.link, "run ended"))
    with driving(command, federation.folder / "run.log") as run:
        wait_until(lambda: len(events(federation.sites["north"], "shares")) > known, why=lambda: run.text)
        pids = federation.family("link")
        federation.kill("link")
        assert all_gone(pids)
        federation.start("link")
        assert run.wait() == 1
    assert "the link was ended while it ran" in run.text
    assert "--name first goes on" in run.text
    [ended] = events(federation.link, "run ended")[ends:]
    assert not (out / "report.html").exists()
    address = f"127.0.0.1:{federation.link.config().port}"
    places = {"link.example.org:8443": address, "ca.pem": federation.link.ca, "anna.token": federation.link.admin_token}
    command = documented("run", places={**programme, **places}, has="--server")
    done = subprocess.run([*command, "--name", "first", "--out", str(out), "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Not for clinical decisions." in (out / "report.html").read_text()
    told = json.loads(done.stdout)
    assert told["rounds"] == 2
    assert told["history"][0] == first["result"].content["history"][0]
    assert [line["round"] for line in told["history"]] == [1, 2]
    assert told["history"][1]["sites"] >= 3
    assert told["run"] != ended["run"]
    for site in federation.sites.values():  # nobody works a second time for the round that was whole
        assert len([entry for entry in events(site, "mask") if entry["run"] == told["run"]]) <= 2


def test_a_site_gives_its_tasks_to_nobody_without_its_own_secret(federation: Federation) -> None:
    status = json.loads(federation.sites["north"].status.read_text())
    node = Path(f"/proc/{status['processes']['supernode']['pid']}/cmdline").read_bytes().split(b"\0")
    thief = RuntimeHttpClient.from_server_address(f"127.0.0.1:{node[-2].decode()}", True, None, [])
    with thief, pytest.raises(httpx.HTTPStatusError, match="401"):
        thief.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-clientapp"]))


def test_a_new_site_is_let_in_and_shut_out_again_while_it_is_connected(federation: Federation) -> None:
    home, others = federation.enrol("fifth"), set(SITES)
    with driving(start_role("fifth", home), federation.folder / "fifth.log") as fifth:
        wait_until(lambda: federation.online() == {*others, "fifth"}, why=lambda: fifth.text)
        revoke(federation.link.path, "fifth")
        wait_until(lambda: federation.online() == others)
        wait_until(lambda: "warning: supernode ended" in fifth.text)
        assert "supernode is up" not in fifth.text.partition("warning: supernode ended")[2]


def test_a_hostile_link_cannot_bring_code_to_a_site(federation: Federation) -> None:
    """The same certificate and port, but no gate: the sites' own check is what is left."""
    assert federation.stop("link") == set()
    home, port, stopped = federation.link, federation.link.config().port, time.time()
    around = environment(home, DISTLFM_LINK_HOME=str(home.path))
    server = [sys.executable, str(HOSTILE), str(home.path)]
    tasks = [sys.executable, "-m", "distlfm.federated.link.tasks", "link", str(home.path), f"127.0.0.1:{port}"]
    null = subprocess.DEVNULL
    with contextlib.ExitStack() as stack:
        for command in (server, tasks):
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=null, stderr=null, env=around)
            stack.enter_context(process)  # its standard input closes at the end, and it ends with that
        wait_until(lambda: federation.online(stopped) == set(SITES))
        programme = federation.programme(1, kind="query", question="cohort", deadline=60.0)
        run = start_foreign(federation.link, programme)
        with federation.control() as control:
            wait_until(lambda: control.run_state(run)["state"] == "finished")
            assert control.run_state(run)["outcome"] == "failed"
    for name in SITES:
        refused = [entry for entry in events(federation.sites[name], "refused") if entry["run"] == str(run)]
        assert {entry["facts"]["what"] for entry in refused} == {"app"}
        assert not list(federation.sites[name].path.rglob("stolen.py"))


def test_nothing_is_left_when_the_roles_are_stopped(federation: Federation) -> None:
    assert federation.stop(*federation.drivers) == set()
