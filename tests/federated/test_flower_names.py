"""What we use of Flower beyond its public interface is still there, in the version that is pinned."""

from __future__ import annotations

import dataclasses
import inspect
from importlib import import_module
from importlib.metadata import version

import pytest
from flwr.supercore.superexec.executor.types import Executor
from flwr.superlink.config_loader import SuperLinkLifespanConfig
from flwr.superlink.main import create_app
from flwr.supernode import fleet_http_connection, start_client_internal

from distlfm.federated.link import flower
from distlfm.federated.link.tasks import ForkingExecutor
from distlfm.federated.refused import Reason

USED = [
    ("flwr.supercore.retry.http_retry", "MAX_RETRY_DELAY"),
    ("flwr.supercore.heartbeat", "HEARTBEAT_DEFAULT_INTERVAL"),
    ("flwr.supernode.fleet_http_connection", "HEARTBEAT_DEFAULT_INTERVAL"),
    ("flwr.supernode.start_client_internal", "_verify_fab"),
    ("flwr.supercore.superexec.run_superexec", "get_executor"),
    ("flwr.supernode.runtime.run_clientapp", "Error"),
    ("flwr.superlink.runtime.run_serverapp", "HttpGrid"),
    ("flwr.superlink.runtime.run_serverapp", "install_from_fab"),
    ("flwr.supernode.runtime.run_clientapp", "install_from_fab"),
    ("flwr.superlink.grid.http_grid", "pull_objects"),
]


def test_flower_is_the_version_whose_insides_we_know() -> None:
    assert version("flwr") == "1.41.0"


@pytest.mark.parametrize(("module", "name"), USED)
def test_flowers_code_still_reads_the_name_that_we_replace(module: str, name: str) -> None:
    found = import_module(module)
    assert hasattr(found, name)
    assert inspect.getsource(found).count(name) >= 2  # bound, and used


def test_the_names_that_are_replaced_are_those(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced = []
    monkeypatch.setattr(flower, "_put", lambda module, name, _: replaced.append((module.__name__, name)))
    flower.retry_soon()
    flower.beat_every(10.0)
    flower.leave_bundles_to_us()
    flower.run_tasks_with(object())
    flower.reach_sites_with(object)
    flower.wait_for_parts(1.0)
    flower.send_errors_without_data()
    flower.install_whole(object)
    assert sorted(replaced) == sorted(USED)


def test_errors_lose_their_words() -> None:
    error = flower._without_data(code=3, reason="<class 'ValueError'>:<'glucose of patient 17 is 412'>")
    assert (error.code, error.reason) == (3, flower.NO_DATA)
    full = flower._without_data(code=3, reason="<class 'OSError'>:<'[Errno 28] No space left on device: '/x''>")
    assert full.reason == Reason.DISK.value


def test_flowers_functions_take_what_we_give_them() -> None:
    pull = inspect.signature(start_client_internal._pull_and_store_message).parameters
    given = {"state", "object_store", "node_config", "receive", "get_run", "get_fab", "pull_object"}
    assert set(pull) == given | {"confirm_message_received", "trusted_entities"}
    assert set(inspect.signature(start_client_internal._push_messages).parameters) == {
        "state",
        "object_store",
        "send",
        "push_object",
    }
    connect = list(inspect.signature(fleet_http_connection.http_request_response).parameters)
    assert connect[:4] == ["server_address", "insecure", "root_certificates", "authentication_keys"]
    assert {"authn_plugin", "superexec_auth_secret", "enable_supernode_auth", "event_log_plugin"} <= {
        field.name for field in dataclasses.fields(SuperLinkLifespanConfig)
    }


def test_a_bundle_without_the_mark_never_gets_past_flower() -> None:
    """`supernode.BundleCheck` takes this mark from foreign bundles."""
    source = inspect.getsource(start_client_internal._pull_and_store_message)
    refusal, verification = source.index('"valid_license"'), source.index("_verify_fab(")
    assert refusal < verification < source.index("get_fused_config_from_fab")


def test_our_executor_has_all_that_flower_calls() -> None:
    wanted = {name for name, _ in inspect.getmembers(Executor, inspect.isfunction) if not name.startswith("_")}
    runner = inspect.getsource(import_module("flwr.supercore.superexec.run_superexec"))
    called = {name for name in wanted if f"executor.{name}(" in runner} | {"launch"}
    assert called <= {name for name, _ in inspect.getmembers(ForkingExecutor, inspect.isfunction)}


def test_admins_and_nodes_are_asked_for_before_anything_is_done() -> None:
    names = [getattr(layer.cls, "__name__", "") for layer in create_app().user_middleware]
    assert names.index("ControlAuthenticationMiddleware") < names.index("ControlEventLogMiddleware")
    assert "NodeAuthMiddleware" in names
