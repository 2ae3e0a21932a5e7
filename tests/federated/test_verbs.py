"""`distlfm federated …` as somebody types it: the steps of setting up, and what is refused before anything starts."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from distlfm.cli import main
from distlfm.federated.setup.homes import LinkHome, SiteHome
from distlfm.federated.setup.identity import fingerprint
from distlfm.federated.site.policy import load_policy
from distlfm.lfo import save_checkpoint
from distlfm.store import Store
from tests.support.store_factories import fill, make_spec

SITES = ("north", "south", "west")


def call(*arguments: object) -> int:
    return main(["federated", *map(str, arguments)])


@pytest.fixture
def local(tmp_path: Path) -> Path:
    operator = save_checkpoint(tmp_path / "operator.pt", {})
    assert call("provision", "local", tmp_path / "all", "--sites", ",".join(SITES), "--operator", operator) == 0
    return tmp_path / "all"


def test_the_steps_of_setting_up_lead_to_sites_that_know_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = tmp_path / "link"
    assert call("provision", "link", link, "--sites", ",".join(SITES), "--host", "link.example.org") == 0
    for name in SITES:
        assert call("provision", "site", link / "kits" / f"{name}.kit.json", tmp_path / name) == 0
    first, *others = (tmp_path / name / f"{name}.public.json" for name in SITES)
    assert call("provision", "enrol", link, first) == 0
    assert f"keys have not come yet from: {', '.join(SITES[1:])}" in capsys.readouterr().out
    assert call("provision", "enrol", link, *others) == 0
    assert "not come yet" not in capsys.readouterr().out
    assert call("provision", "pin", tmp_path / "north", link / "peers.json") == 2
    assert "--sites a,b,c" in capsys.readouterr().err
    for name in SITES:
        assert call("provision", "pin", tmp_path / name, link / "peers.json", "--sites", ",".join(SITES)) == 0
    shown = capsys.readouterr().out.splitlines()
    told = [line for line in shown if line.startswith("fingerprint")]
    assert len(told) == 3
    assert len(set(told)) == 1
    assert "3 sites are pinned" in shown
    for name in SITES:
        key = load_policy(tmp_path / "north").peers[name]
        assert shown.count(f"{name}: {fingerprint(key)}") == 3
    assert {SiteHome(tmp_path / name).config().address for name in SITES} == {"link.example.org:8443"}
    assert set(load_policy(tmp_path / "north").peers) == set(SITES)


def test_an_operator_is_copied_to_every_site(local: Path) -> None:
    given = (local.parent / "operator.pt").read_bytes()
    assert {(local / "sites" / name / "model" / "base.pt").read_bytes() for name in SITES} == {given}


def test_tokens_that_cannot_be_read_are_not_forgotten(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A new one would be the only one then, and nobody else could start a run any more."""
    tokens = LinkHome(local / "link").tokens
    tokens.write_text("[")
    for more in ([], ["--drop"]):
        assert call("provision", "token", local / "link", "anna", *more) == 2
        assert "tokens.json is damaged" in capsys.readouterr().err
    assert tokens.read_text() == "["
    assert not (local / "link" / "anna.token").exists()


def test_a_token_that_cannot_be_noted_is_not_left_behind(
    local: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "tokens.json")

    with monkeypatch.context() as patched:
        patched.setattr("distlfm.federated.link.authn.replace_secret", full)
        assert call("provision", "token", local / "link", "anna") == 1
    assert "Free space; then the same command goes on" in capsys.readouterr().err
    assert call("provision", "token", local / "link", "anna") == 0


def test_audit_shows_a_log_and_finds_a_changed_line(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = local / "link" / "audit.jsonl"
    assert call("audit", local / "link", "--json") == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [entry["event"] for entry in told["entries"]] == ["token made", "provisioned"]
    assert call("audit", log, "--head", told["head"]) == 0
    log.write_text(log.read_text().replace("admin", "nobody"))
    assert call("audit", log) == 1
    assert "Line 1 was changed" in capsys.readouterr().out


def test_tokens_are_made_and_dropped(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("provision", "token", local / "link", "anna") == 0
    token = (local / "link" / "anna.token").read_text()
    assert token not in capsys.readouterr().out
    assert call("provision", "token", local / "link", "anna", "--drop") == 0
    assert set(json.loads(LinkHome(local / "link").tokens.read_text())) == {"admin"}


def test_a_revoked_site_is_no_peer_any_more(local: Path) -> None:
    assert call("provision", "revoke", local / "link", "south") == 0
    assert set(json.loads((local / "link" / "peers.json").read_text())["peers"]) == {"north", "west"}
    assert call("provision", "revoke", local / "link", "nobody") == 2


def test_a_kit_and_a_certificate_are_made_later(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("provision", "kit", local / "link", "late") == 0
    assert (local / "link" / "kits" / "late.kit.json").is_file()
    assert call("provision", "renew", local / "link") == 0
    until = re.search(r"ends on (\d{4}-\d\d-\d\d)", capsys.readouterr().out)
    assert until is not None
    assert call("status", local / "link") == 1
    assert re.search(rf"certificate_until\s+{until[1]}", capsys.readouterr().out)


def test_plain_text_off_this_machine_is_refused_by_link_and_site(
    local: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link, north = LinkHome(local / "link"), SiteHome(local / "sites" / "north")
    (north.path / "site.yaml").write_text("name: north\nstore: pairs.zarr\n")
    for file, key in ((link.config_file, "bind"), (north.config_file, "host")):
        file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), key: "10.0.0.3"}))
    assert call("link", link.path, "--insecure") == 2
    assert call("site", north.path, "--insecure") == 2
    assert capsys.readouterr().err.count("--insecure is for this machine alone") == 2
    programme = local / "programme.yaml"
    programme.write_text("verb: programme\n")
    assert call("run", programme, "--server", "10.0.0.3:8443", "--token", link.admin_token, "--insecure") == 2
    assert call("run", programme, "--link", link.path, "--insecure") == 2
    assert capsys.readouterr().err.count("--insecure is for this machine alone") == 2


def test_a_site_without_settings_operator_or_peers_does_not_start(
    local: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    north = SiteHome(local / "sites" / "north")
    assert call("site", north.path) == 2
    assert "Neither fit nor store is filled in." in capsys.readouterr().err
    (north.path / "site.yaml").write_text("name: north\nstore: pairs.zarr\n")
    (north.path / "model" / "base.pt").unlink()
    assert call("site", north.path) == 2
    assert "first operator" in capsys.readouterr().err
    north.policy.write_text("site: north\n")
    assert call("site", north.path) == 2
    assert "provision pin" in capsys.readouterr().err


def test_a_site_that_agreed_on_another_version_is_warned_that_it_refuses_all(
    local: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    north = SiteHome(local / "sites" / "north")
    call("site", north.path)  # ends at once: nothing is filled in
    assert "agrees on" not in capsys.readouterr().out
    north.policy.write_text(re.sub("(?m)^package: .*$", "package: 9.9.9", north.policy.read_text()))
    call("site", north.path)
    assert "agrees on distlfm 9.9.9" in capsys.readouterr().out


def test_a_link_does_not_start_with_a_token_file_that_others_can_read(
    local: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    LinkHome(local / "link").tokens.chmod(0o644)
    assert call("link", local / "link") == 2
    assert "chmod 600" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--server", "x:1"], ["--server", "nowhere", "--ca", "ca.pem"]])
def test_a_run_needs_to_know_its_link(options: list[str], tmp_path: Path) -> None:
    programme = tmp_path / "programme.yaml"
    programme.write_text("verb: programme\n")
    assert call("run", programme, *options) == 2


@pytest.mark.parametrize("verb", [["run"], ["query", "cohort", "--programme"]])
def test_a_programme_without_its_operator_is_refused_before_anything_starts(
    verb: list[str], local: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    programme = tmp_path / "programme.yaml"
    programme.write_text("verb: programme\n")
    assert call(*verb, programme, "--link", local / "link") == 2
    assert "does not say which operator is meant" in capsys.readouterr().err
    assert call(*verb, programme, "--link", local / "link", f"operator={tmp_path}/lost.pt") == 2
    assert f"There is no checkpoint {tmp_path}/lost.pt" in capsys.readouterr().err


def test_a_question_needs_to_know_who_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("query", "cohort") == 2
    assert "--site FOLDER" in capsys.readouterr().err


def test_status_of_what_does_not_run_is_told_by_the_exit_code(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("status", local / "link", "--json") == 1
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["role"], told["state"], told["sites"]) == ("link", "never started", dict.fromkeys(SITES, "active"))
    assert call("status", local / "sites" / "north") == 1
    assert call("status", local) == 2


def test_an_unfilled_site_is_told_which_lines_to_fill_in(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    north = local / "sites" / "north"
    assert call("prepare", north) == 2
    told = capsys.readouterr().err
    assert f"distlfm: {north / 'site.yaml'}: Neither fit nor store is filled in. Fill in" in told
    assert "docs/federation.md (Setting up)" in told
    assert "''" not in told
    (north / "site.yaml").write_text("name: north\nstore: pairs.zarr\nfit: {mechanism: {kind: glucose}}\n")
    assert call("prepare", north) == 2
    assert "Both fit and store are filled in. Leave one of them out." in capsys.readouterr().err


def test_status_of_a_site_tells_how_far_its_patients_are_fitted(
    local: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    north = local / "sites" / "north"

    def told() -> dict[str, Any]:
        assert call("status", north, "--json") == 1
        found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return found

    assert "Neither fit nor store is filled in." in told()["fits"]
    (north / "site.yaml").write_text("name: north\nfit: {mechanism: {kind: glucose}}\n")
    assert told()["fits"] == f"not yet: distlfm federated prepare {north}"
    store = Store.create(north / "fits" / "store.zarr", make_spec())
    fill(store, [0], "p0/")
    fill(store, [1], "p1/")
    counts = ("fits", "windows", "windows_fitted", "windows_failed", "patients_fitted")
    assert [told()[key] for key in counts] == ["begun", 10, 7, 1, 2]
    fill(store, [2], "p2/")
    assert [told()[key] for key in counts] == ["done", 10, 8, 2, 3]
    assert call("status", north) == 1
    assert "patients_fitted" in capsys.readouterr().out
    (north / "site.yaml").write_text("name: north\nstore: fits\n")
    assert told()["fits"] == "done"
