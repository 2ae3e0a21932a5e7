"""The container images: built by the steps of `make setup` and by no others, linted, and made of what is tracked.

No container engine is needed: `make test-release` runs the same RUN lines in a clean Debian.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from distlfm.cli import main

PROJECT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.executable).parent
DOCKER = PROJECT / "docker"
DOCKERFILES = ("Dockerfile", "Dockerfile.cuda")
DEFINITION = DOCKER / "distlfm.def"
SCRIPT = PROJECT / "launch" / "bootstrap.sh"


def instructions(name: str) -> list[tuple[str, str]]:
    """Instruction and rest of each line of a Dockerfile, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", (DOCKER / name).read_text())
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def steps(name: str, word: str = "RUN") -> list[str]:
    return [rest for found, rest in instructions(name) if found == word]


def section(name: str) -> str:
    """The body of a section of the Apptainer definition."""
    found = re.search(rf"^%{name}\n(.*?)(?=^%|\Z)", DEFINITION.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


# ---- one script ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCKERFILES)
def test_an_image_installs_by_the_script_of_make_and_by_nothing_else(name: str) -> None:
    system, python, user = steps(name)
    assert system == "launch/bootstrap.sh --system && rm -rf /var/lib/apt/lists/*"
    assert python == 'DISTLFM_TORCH_INDEX="$TORCH_INDEX" launch/bootstrap.sh --image'
    assert not re.search(r"\b(apt|apt-get|pip|conda|curl|wget)\b", user)
    assert steps(name, "FROM") == ["debian:12-slim"]
    assert "PIP_NO_CACHE_DIR=1" in shlex.split(steps(name, "ENV")[0])
    assert "launch/bootstrap.sh launch/" in steps(name, "COPY")


def test_the_two_images_differ_only_in_where_torch_comes_from_and_in_what_the_driver_wants() -> None:
    cpu, cuda = (instructions(name) for name in DOCKERFILES)
    differing = {word for one, other in zip(cpu, cuda, strict=True) if one != other for word in (one[0], other[0])}
    assert differing == {"ARG", "ENV"}
    (here,), (there,) = (steps(name, "ENV") for name in DOCKERFILES)
    assert set(shlex.split(here)) < set(shlex.split(there))
    assert [steps(name, "ARG") for name in DOCKERFILES] == [
        ["TORCH_INDEX=https://download.pytorch.org/whl/cpu"],
        ["TORCH_INDEX="],
    ]


def test_the_apptainer_image_is_made_by_the_same_steps() -> None:
    (venv,) = re.findall(r"DISTLFM_VENV=(\S+)", " ".join(steps("Dockerfile", "ENV")))
    commands = [line.strip() for line in section("post").splitlines() if line.strip()]
    expected = [step.replace("$TORCH_INDEX", "{{ TORCH_INDEX }}") for step in steps("Dockerfile")[:2]]
    assert commands == ["set -eu", f"export DISTLFM_VENV={venv} PIP_NO_CACHE_DIR=1", "cd /opt/distlfm", *expected]
    assert f"TORCH_INDEX={steps('Dockerfile', 'ARG')[0].partition('=')[2]}" in section("arguments")
    assert f"From: {steps('Dockerfile', 'FROM')[0]}\n" in DEFINITION.read_text()
    assert f'PATH="{venv}/bin:$PATH"' in section("environment")


def test_the_clean_root_of_the_release_check_is_the_images_debian_and_runs_its_steps() -> None:
    script = (PROJECT / "tests" / "release" / "clean_root.sh").read_text()
    assert "SUITE=bookworm" in script  # Debian 12
    assert "sed -n 's/^RUN //p' \"$root$WORK/docker/Dockerfile\"" in script
    # It takes whole lines.
    assert [rest for rest in steps("Dockerfile") if f"RUN {rest}\n" not in (DOCKER / "Dockerfile").read_text()] == []
    (venv,) = re.findall(r"^IMAGE_VENV=(\S+)", script, re.MULTILINE)
    assert f"DISTLFM_VENV={venv}" in " ".join(steps("Dockerfile", "ENV"))


def test_the_extra_of_the_images_is_everything_but_the_tools_of_developers() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (full,), (everything,) = extras["full"], extras["all"]
    tools = {"dev", "docs", "bench", "arviz", "reference"}
    assert set(full.removeprefix("distlfm[").removesuffix("]").split(",")) == set(extras) - tools - {"full", "all"}
    assert everything == "distlfm[full,dev,docs]"


# ---- the script's modes, with a pip that only notes what it is asked for --------------------------------------------


def bootstrap(folder: Path, mode: str, **environment: str) -> list[list[str]]:
    """What `launch/bootstrap.sh MODE` asks pip for, a list of arguments a call."""
    (folder / "bin").mkdir()
    for name in ("python", "pip"):
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {shlex.quote(str(folder / name))}.called\n')
        program.chmod(0o755)
    settings = {"PATH": os.environ["PATH"], "DISTLFM_VENV": str(folder), **environment}
    done = subprocess.run([SCRIPT, mode], env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [line.split() for line in (folder / "pip.called").read_text().splitlines()]


def test_image_mode_installs_the_locked_versions(tmp_path: Path) -> None:
    (call,) = bootstrap(tmp_path, "--image")
    assert call[0] == "install"
    assert call[call.index("-c") + 1] == "constraints.txt"
    assert call[-2:] == ["-e", ".[full]"]


def test_only_torch_is_taken_from_another_index(tmp_path: Path) -> None:
    first, second = bootstrap(tmp_path, "--image", DISTLFM_TORCH_INDEX="https://example.org/cpu")
    assert first[-4:] == ["--no-deps", "--index-url", "https://example.org/cpu", "torch"]
    assert first[first.index("-c") + 1] == "constraints.txt"
    assert "--index-url" not in second
    assert second[-2:] == ["-e", ".[full]"]


# ---- lint and contents -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCKERFILES)
def test_hadolint_finds_nothing_in_a_dockerfile(name: str) -> None:
    done = subprocess.run([PROGRAMS / "hadolint", DOCKER / name], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_hadolint_would_find_a_fault(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM debian\nRUN cd /opt && apt-get install gcc\n")
    done = subprocess.run([PROGRAMS / "hadolint", tmp_path / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 1
    assert {"DL3006", "DL3008"} <= set(re.findall(r"DL\d+", done.stdout))


@pytest.mark.parametrize("name", ["post", "runscript", "test", "environment"])
def test_shellcheck_finds_nothing_in_the_apptainer_definition(name: str) -> None:
    done = subprocess.run(
        [PROGRAMS / "shellcheck", "-s", "sh", "-"], input=section(name), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_an_image_runs_as_an_ordinary_user() -> None:
    for name in DOCKERFILES:
        words = [word for word, _ in instructions(name)]
        assert steps(name, "USER") == ["1000:1000"]
        assert "RUN" not in words[words.index("USER") :]
        assert "--uid 1000 " in steps(name)[-1]


def test_images_get_what_the_installation_needs_and_nothing_that_runs_leave_behind() -> None:
    ignored = [line for line in (PROJECT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    tracked = {line.split("/")[0] for line in _git("ls-files").splitlines()}
    needed = {"pyproject.toml", "constraints.txt", "README.md", "LICENSE", "launch", "federated", "distlfm", "configs"}
    assert needed <= tracked
    assert {name for name in tracked if any(fnmatch(name, pattern) for pattern in ignored)} == {".ci", "tests"}
    copied = {line.split()[0] for line in section("files").splitlines() if line.strip()}
    assert needed <= copied
    assert [name for name in copied if not (PROJECT / name).exists()] == []
    # What git ignores is made by somebody on this machine, and an image must not depend on it.
    made = [line.strip("/") for line in (PROJECT / ".gitignore").read_text().split()]
    assert [name for name in made if not {name, f"**/{name}"} & set(ignored)] == []


def test_what_the_guides_leave_in_the_projects_folder_gets_into_no_image() -> None:
    """Keys of a federation, above all: docker/README.md makes them beside the Dockerfile."""
    guide = (DOCKER / "README.md").read_text()
    made = {word.split("/")[0] for line in re.findall(r"^mkdir -p (.*)$", guide, re.MULTILINE) for word in line.split()}
    made |= {word.split("/")[0] for word in re.findall(r"--out (\S+)", guide)}
    made |= set(re.findall(r"\S+\.sif", guide))
    assert {"federation", "runs", "distlfm.sif"} <= made
    made |= {"slurm/site.sh", "distlfm-fit-17.log"}
    for file in (".dockerignore", ".gitignore"):
        patterns = [line.strip("/") for line in (PROJECT / file).read_text().splitlines() if not line.startswith("#")]
        known = {name for name in made if any(fnmatch(name, pattern.removeprefix("**/")) for pattern in patterns)}
        assert made - known == set(), file
    copied = {line.split()[0] for line in section("files").splitlines() if line.strip()}
    assert not copied & {name.split("/")[0] for name in made}


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=True).stdout


# ---- the federation --------------------------------------------------------------------------------------------------

COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SITES = [name for name in SERVICES if name != "link"]


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Where the folders of a service are seen, and which they are."""
    found = (
        re.fullmatch(r"\$\{FEDERATION:-\.\./federation\}(/[^:]+):([^:]+)(:ro)?", one) for one in service["volumes"]
    )
    return {one[2]: one[1] + (one[3] or "") for one in found if one is not None}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_starts_its_role_in_the_folder_that_is_mounted_for_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = "link" if name == "link" else "site"
    served: list[Path] = []
    monkeypatch.setattr(f"distlfm.federated.link.service.serve_{role}", lambda folder, *_, **__: served.append(folder))
    assert main(SERVICES[name]["command"]) == 0
    (folder,) = served
    assert mounts(SERVICES[name])[str(folder)] == ("/link" if name == "link" else f"/sites/{name}")


def test_a_site_sees_its_own_folder_and_data_and_reaches_the_link_alone() -> None:
    assert len(SITES) == 3
    for name in SITES:
        service = SERVICES[name]
        assert mounts(service) == {f"/federation/sites/{name}": f"/sites/{name}", "/data": f"/data/{name}:ro"}
        assert service["networks"] == [name]
        assert COMPOSE["networks"][name] == {"internal": True}
    assert sorted(SERVICES["link"]["networks"]) == sorted(SITES)


def test_no_service_opens_a_port_or_runs_as_root_or_may_write_into_its_image() -> None:
    for service in SERVICES.values():
        assert "ports" not in service
        assert service["user"] == "${FEDERATION_USER:-1000:1000}"
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def test_the_commands_that_make_a_federation_make_what_its_containers_mount(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lines of docker/README.md, with the program itself in place of its image."""
    texts = re.findall(r"```text\n(.*?)```", (DOCKER / "README.md").read_text(), re.DOTALL)
    (block,) = (text for text in texts if "role()" in text)
    lines = [line for line in block.splitlines() if "docker compose" not in line]
    noted = "\n".join('role() { echo "$@" >> calls; }' if line.startswith("role() ") else line for line in lines)
    subprocess.run(["bash", "-euo", "pipefail", "-c", noted], cwd=tmp_path, check=True)
    for call in (tmp_path / "calls").read_text().splitlines():
        words = call.replace(" /federation/", f" {tmp_path}/federation/").split()
        assert main(["federated", "provision", *words]) == 0
    for service in SERVICES.values():
        for folder in mounts(service).values():
            assert (tmp_path / f"federation{folder.removesuffix(':ro')}").is_dir()
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fingerprint")]
    assert (len(told), len(set(told))) == (4, 1)
    settings = yaml.safe_load((tmp_path / "federation" / "link" / "link.yaml").read_text())
    assert (settings["host"], settings["bind"]) == ("link", "0.0.0.0")
