"""Tokens have a role and an end: whoever may look starts nothing, and a token that has ended opens nothing."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from test_gate import knock, start

from distlfm.cli import main
from distlfm.federated.audit import verify
from distlfm.federated.link import bundle
from distlfm.federated.link.authn import Held, Rights, add_token, digests_now, read_token, read_tokens, token_digest
from distlfm.federated.link.gate import ALLOWED, CONTROL, DENIED, LOOKING, START, UNKNOWN, Gate
from distlfm.federated.setup.homes import LinkConfig, LinkHome
from distlfm.federated.setup.provision import make_link

TODAY = datetime.now(UTC).date()
TOKENS = {
    "rita": Held(digest=token_digest("of-rita"), role="run"),
    "quentin": Held(digest=token_digest("of-quentin"), role="query", until=TODAY),
    "reto": Held(digest=token_digest("of-reto"), role="read", until=TODAY + timedelta(3)),
    "old": Held(digest=token_digest("of-old"), role="run", until=TODAY - timedelta(1)),
}


def tried(holder: str, what: str, programme: str | None = None, **more: Any) -> tuple[int, bool, list[Any]]:
    """The code, whether the request came through to Flower, and what was noted."""
    settings = {"programme": programme or "{}", "run-name": "one"}
    body = start(bundle.build(), settings) if what == START else b""
    headers = more.pop("headers", [(b"authorization", f"Bearer of-{holder}".encode())])
    code, inside, refused = knock(f"/v1/control/{what}", body, headers=headers, may=Rights(lambda: TOKENS), **more)
    return code, bool(inside.bodies), refused


@pytest.mark.parametrize("what", sorted(set(CONTROL) - LOOKING))
def test_whoever_may_look_starts_and_stops_nothing(what: str) -> None:
    for programme in ('{"kind": "query"}', "{}"):
        code, inside, refused = tried("reto", what, programme)
        assert (code, inside) == (DENIED, False)
        assert refused == [
            (
                "control",
                f"the token of reto has the role 'read', which may look at sites, runs and their logs, and not {what}",
            )
        ]
    assert all(tried("reto", one)[1] for one in LOOKING)


@pytest.mark.parametrize(
    "programme",
    ["{}", '{"kind": "rounds"}', '{"kind": "query", "kind": "rounds"}', '["query"]', "query", '{"kind": ["query"]}'],
)
def test_whoever_may_ask_starts_no_rounds_however_the_programme_is_written(programme: str) -> None:
    assert tried("quentin", START, programme)[:2] == (DENIED, False)
    assert tried("rita", START, programme)[:2] == (200, True)


def test_whoever_may_ask_asks_and_looks() -> None:
    assert tried("quentin", START, '{"kind": "query"}')[:2] == (200, True)
    assert tried("quentin", "stop-run")[:2] == (DENIED, False)
    assert all(tried("quentin", one)[1] for one in LOOKING)


@pytest.mark.parametrize("what", CONTROL)
def test_a_token_that_has_ended_opens_nothing(what: str) -> None:
    code, inside, refused = tried("old", what)
    assert (code, inside) == (DENIED, False)
    assert refused == [("control", f"the token of old has ended: its last day was {TODAY - timedelta(1)}")]


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"of-rita")],
        [(b"authorization", b"Basic of-rita")],
        [(b"authorization", b"Bearer of-nobody")],
        [(b"authorization", b"Bearer of-rita"), (b"Authorization", b"Bearer of-rita")],
        [(b"x-authorization", b"Bearer of-rita")],
    ],
)
def test_without_one_token_of_the_link_nothing_of_its_control_is_served(headers: list[tuple[bytes, bytes]]) -> None:
    for what in CONTROL:
        assert tried("", what, headers=headers)[:2] == (UNKNOWN, False)


def test_two_spellings_of_one_token_are_the_same_for_the_gate_and_for_flower() -> None:
    """Flower takes spaces around a token off; a gate that did not would let a reader pass as a stranger."""
    for written in (b"Bearer  of-reto", b"bearer of-reto ", b"BEARER of-reto"):
        assert tried("", START, headers=[(b"authorization", written)])[0] == DENIED


@pytest.fixture
def link(tmp_path: Path) -> LinkHome:
    make_link(tmp_path / "link", LinkConfig(sites=("north", "south", "west")))
    return LinkHome(tmp_path / "link")


def test_a_token_of_version_0_1_may_what_it_might(link: LinkHome) -> None:
    link.tokens.write_text(json.dumps({"anna": token_digest("of-anna")}))
    assert read_tokens(link.tokens) == {"anna": Held(digest=token_digest("of-anna"), role="run", until=None)}
    assert Rights(lambda: read_tokens(link.tokens))("of-anna", START, "rounds") is None
    add_token(link.path, "bert", "read", 3)
    assert [one.role for one in read_tokens(link.tokens).values()] == ["run", "read"]


def test_tokens_are_made_with_a_role_and_an_end_and_listed(
    link: LinkHome, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    verb = ["federated", "provision", "token", str(link.path)]
    assert main([*verb, "anna", "--role", "query", "--days", "2"]) == 0
    assert main([*verb, "bert"]) == 0
    held = read_tokens(link.tokens)["anna"]
    assert (held.role, held.until) == ("query", datetime.now(UTC).date() + timedelta(2))
    capsys.readouterr()
    assert main(verb) == 0
    told = capsys.readouterr().out
    assert "admin: run (start and stop rounds, ask questions, look), has no end" in told
    assert f"anna: query (ask questions of the federation, look), ends on {held.until}" in told
    assert read_token(link.path / "anna.token") not in told
    made = [one["facts"] for one in verify(link.audit).entries if one["event"] == "token made"]
    assert made[-2] == {"holder": "anna", "role": "query", "until": str(held.until)}
    assert main([*verb, "carl", "--role", "root"]) == 2
    assert "Roles are run, query, read." in capsys.readouterr().err
    assert main([*verb, "carl", "--days", "0"]) == 2


def test_a_token_that_has_ended_is_not_among_those_that_flower_is_shown(link: LinkHome) -> None:
    ended = Held(digest="ab" * 32, role="run", until=date(2020, 1, 1))
    link.tokens.write_text(json.dumps({"anna": ended.model_dump(mode="json"), "bert": "cd" * 32}))
    assert digests_now(link.tokens) == {"bert": "cd" * 32}


def test_every_request_of_the_control_interface_is_asked_about() -> None:
    """A name that is let in and stands outside of the roles would be open to all."""
    asked: list[str] = []

    def note(token: str | None, what: str, kind: str | None) -> None:
        asked.append(what)

    for path in sorted(one for one in ALLOWED if one.startswith("/v1/control/")):
        knock(path, start(bundle.build()), may=note)
    assert set(asked) == set(CONTROL)
    assert Gate.__dataclass_fields__["may"].default("", "", "") is None
