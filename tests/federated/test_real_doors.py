"""A real link's doors, knocked at by those who should stay outside. No site is running."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.control_pb2 import ListNodesRequest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, RegisterNodeFleetRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.protobuf.client import PROTOBUF_MEDIA_TYPE
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from distlfm.errors import UsageError, WorkError
from distlfm.federated.link.authn import TokenError, add_token, read_token, read_tokens
from distlfm.federated.link.control import Control, connection_of
from distlfm.federated.link.gate import RUNTIME
from distlfm.federated.link.service import check_link
from distlfm.federated.link.supernode import node_keys
from distlfm.federated.settings import ProgrammeConfig
from distlfm.federated.setup.enrolment import revoke
from distlfm.federated.setup.homes import LinkConfig, LinkHome, SiteHome
from distlfm.federated.setup.provision import make_link, make_local
from distlfm.runtime.reporting import Silent
from tests.support.fleet_runs import Driver, all_gone
from tests.support.foreign_bundle import start_foreign
from tests.support.real_sites import SITES, events, free_port, start_role, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

Keys = tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LinkHome, dict[str, SiteHome]]]:
    folder = tmp_path_factory.mktemp("doors")
    link, sites = make_local(folder, LinkConfig(port=free_port(), sites=SITES))
    driver = Driver(start_role("link", link), folder / "link.log")
    try:
        wait_until(lambda: answers(link), why=lambda: driver.text)
        yield link, sites
        pids = {driver.process.pid, *driver.watch()}
        driver.process.terminate()
        driver.process.wait(30)
        assert all_gone(pids)
    finally:
        driver.kill()


def answers(link: LinkHome) -> bool:
    try:
        with Control(connection_of(link.path)) as control:
            return len(control.nodes()) == len(SITES)
    except WorkError:
        return False


@pytest.fixture(scope="module")
def link(roles: tuple[LinkHome, dict[str, SiteHome]]) -> LinkHome:
    return roles[0]


def address(link: LinkHome) -> str:
    return f"127.0.0.1:{link.config().port}"


def fleet(link: LinkHome, keys: Keys | None) -> FleetHttpClient:
    signing = [] if keys is None else [NodeAuthHttpInterceptor(*keys)]
    return FleetHttpClient.from_server_address(address(link), False, str(link.ca), signing)


def pem(keys: Keys) -> bytes:
    return keys[1].public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def new_keys() -> Keys:
    key = ec.generate_private_key(ec.SECP384R1())
    return key, key.public_key()


def activate(client: FleetHttpClient, public: bytes) -> int:
    return int(client.ActivateNode(ActivateNodeRequest(public_key=public, heartbeat_interval=10.0)).node_id)


def test_whoever_has_no_admin_token_starts_nothing_and_sees_nothing(link: LinkHome) -> None:
    connection = connection_of(link.path)
    with Control(replace(connection, token="x" * 43)) as control:
        for asked in (lambda: control.start_run({}, "thief"), control.nodes, control.runs, lambda: control.stop_run(1)):
            with pytest.raises(UsageError, match="does not take this token"):
                asked()
    nobody = ControlHttpClient.from_server_address(address(link), False, str(link.ca), [])
    with nobody, pytest.raises(httpx.HTTPStatusError, match="401"):
        nobody.ListNodes(ListNodesRequest())
    assert "no admin token" in {entry["facts"]["why"] for entry in events(link, "refused")}


def test_no_bundle_with_code_is_started_even_for_an_admin(link: LinkHome) -> None:
    with pytest.raises(httpx.HTTPStatusError, match="403"):
        start_foreign(link, ProgrammeConfig())
    with Control(connection_of(link.path)) as control:
        assert control.runs() == []
    assert "files that ours has not" in events(link, "refused")[-1]["facts"]["why"]


def test_a_reader_looks_and_starts_nothing_and_a_token_that_has_ended_says_so(link: LinkHome) -> None:
    reader = read_token(add_token(link.path, "reader", "read", 3))
    with Control(connection_of(link.path)) as admin:
        there = {node["site"] for node in admin.nodes()}  # another test may have revoked one
    with Control(replace(connection_of(link.path), token=reader)) as control:
        assert {node["site"] for node in control.nodes()} == there >= set(SITES[1:])
        for kind in ("rounds", "query"):
            with pytest.raises(TokenError, match="has the role 'read'") as caught:
                control.start_run({"kind": kind}, "thief")
            assert "provision token LINK_FOLDER reader --role run" in caught.value.fix
        ended = {
            name: one.model_copy(update={"until": date(2020, 1, 1)}) for name, one in read_tokens(link.tokens).items()
        }
        kept = link.tokens.read_bytes()
        link.tokens.write_text(json.dumps({name: one.model_dump(mode="json") for name, one in ended.items()}))
        try:
            with pytest.raises(TokenError, match="the token of reader has ended: its last day was 2020-01-01"):
                control.nodes()
        finally:
            link.tokens.write_bytes(kept)
        assert {node["site"] for node in control.nodes()} == there


def test_no_run_is_started_under_a_name_that_is_a_path_even_for_an_admin(link: LinkHome) -> None:
    with Control(connection_of(link.path)) as control:
        with pytest.raises(WorkError, match="the name of the run is not valid"):
            control.start_run({}, "../../thief")
        assert control.runs() == []


def test_a_node_with_an_unknown_key_is_not_let_in(link: LinkHome) -> None:
    keys = new_keys()
    with fleet(link, keys) as stranger, pytest.raises(httpx.HTTPStatusError, match="412"):
        activate(stranger, pem(keys))


def test_a_node_cannot_register_itself(link: LinkHome) -> None:
    keys = new_keys()
    with fleet(link, keys) as stranger, pytest.raises(httpx.HTTPStatusError, match="403"):
        stranger.RegisterNode(RegisterNodeFleetRequest(public_key=pem(keys)))


def test_a_node_without_a_key_or_with_anothers_name_is_not_let_in(
    roles: tuple[LinkHome, dict[str, SiteHome]],
) -> None:
    link, sites = roles
    public = pem(node_keys(sites["north"]))
    for keys in (None, new_keys()):
        with fleet(link, keys) as thief, pytest.raises(httpx.HTTPStatusError, match="401"):
            activate(thief, public)


def test_a_site_is_let_in_until_it_is_revoked(roles: tuple[LinkHome, dict[str, SiteHome]]) -> None:
    link, sites = roles
    keys = node_keys(sites["east"])
    with fleet(link, keys) as east:
        node = Node(node_id=activate(east, pem(keys)))
        beat = SendNodeHeartbeatRequest(node=node, heartbeat_interval=10.0)
        assert east.SendNodeHeartbeat(beat).success
        revoke(link.path, "east")
        wait_until(lambda: bool(events(link, "shut out")))
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            east.SendNodeHeartbeat(beat)
        with pytest.raises(httpx.HTTPStatusError, match="412"):
            activate(east, pem(keys))
    assert events(link, "shut out")[-1]["facts"] == {"site": "east"}


def test_tasks_are_given_to_nobody_without_the_links_own_secret(link: LinkHome) -> None:
    thief = RuntimeHttpClient.from_server_address(address(link), False, str(link.ca), [])
    with thief, pytest.raises(httpx.HTTPStatusError, match="401"):
        thief.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-serverapp"]))
    kind = {"content-type": PROTOBUF_MEDIA_TYPE}
    with httpx.Client(verify=ssl.create_default_context(cafile=str(link.ca)), headers=kind) as anybody:
        answers = {name: anybody.post(f"https://{address(link)}/v1/runtime/{name}").status_code for name in RUNTIME}
    assert answers == dict.fromkeys(RUNTIME, 401)


def test_a_certificate_of_another_authority_is_refused_by_sites_and_admins(
    roles: tuple[LinkHome, dict[str, SiteHome]], tmp_path: Path
) -> None:
    link, sites = roles
    make_link(tmp_path / "other", LinkConfig(sites=SITES))
    foreign, config = tmp_path / "other" / "ca.pem", sites["north"].config()
    with pytest.raises(WorkError, match="no certificate of this federation"):
        check_link(config, foreign, Silent())
    control = Control(replace(connection_of(link.path), ca=foreign))
    with control, pytest.raises(WorkError, match="no certificate of this federation"):
        control.nodes()


def test_plain_text_gets_no_answer(link: LinkHome) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.post(f"http://{address(link)}/v1/control/list-nodes", timeout=10)
