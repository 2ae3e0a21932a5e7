"""The documentation becomes pages without a warning, holds what it promises, and needs no network."""

from __future__ import annotations

import html.parser
import importlib
import inspect
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
import pytest
from pydantic import BaseModel
from sphinx.util.inventory import InventoryFile

from distlfm.cli.config import every_verb
from distlfm.federated.settings import SiteConfig
from distlfm.federated.setup.homes import LinkConfig, NodeConfig
from distlfm.federated.site.policy import SitePolicy
from distlfm.mechanisms import build_system, known_systems
from tests.support.cli_verbs import verbs

PROJECT = Path(__file__).resolve().parents[2]
PUBLIC = ("distlfm", "distlfm.data", "distlfm.equations", "distlfm.lfo", "distlfm.mechanisms", "distlfm.store")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass
class Page(html.parser.HTMLParser):
    """What a page loads, where it leads, and what can be led to."""

    path: Path
    loads: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a":
            self.links += [given["href"]] if "href" in given else []
        else:
            self.loads += [given[name] for name in ("src", "href", "data", "srcset") if name in given]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """What `make docs` writes, and how it ended. The environment is this one, so it is not set up again."""
    pages = tmp_path_factory.mktemp("docs") / "pages"
    command = ["make", "--no-print-directory", "--old-file=setup", "docs", f"DOCS={pages}", f"VENV={sys.prefix}"]
    # Not the settings of the `make test` that this may be a part of.
    alone = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    return pages, subprocess.run(command, cwd=PROJECT, env=alone, capture_output=True, text=True, timeout=840)


@pytest.fixture(scope="module")
def pages(built: tuple[Path, subprocess.CompletedProcess[str]]) -> dict[str, Page]:
    folder, _ = built
    return {str(path.relative_to(folder)): Page(path) for path in sorted(folder.rglob("*.html"))}


@pytest.fixture(scope="module")
def named(built: tuple[Path, subprocess.CompletedProcess[str]]) -> set[str]:
    """Every name under which the reference has an entry."""
    folder, _ = built
    inventory = InventoryFile.loads((folder / "objects.inv").read_bytes(), uri="")
    return {name for kind in inventory.data.values() for name in kind}


def test_the_build_ends_well_without_a_warning_and_says_where_the_pages_are(
    built: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = built
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert done.stdout.splitlines()[-1] == f"[docs] {folder}/index.html"


def test_every_document_is_a_page(pages: dict[str, Page]) -> None:
    documents = [PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
    documents += [path for folder in ("docs", "docker", "slurm") for path in (PROJECT / folder).rglob("*.md")]
    assert {str(path.relative_to(PROJECT).with_suffix(".html")) for path in documents} - set(pages) == set()
    assert "index.html" in pages


def test_every_page_is_in_the_contents(pages: dict[str, Page]) -> None:
    listed = {urlsplit(link).path for link in pages["docs/contents.html"].links}
    written = {name for name in pages if name.startswith("docs/") and name != "docs/contents.html"}
    assert {name.removeprefix("docs/") for name in written} - listed == set()


def test_every_link_leads_somewhere(pages: dict[str, Page]) -> None:
    known = {page.path.resolve(): page for page in pages.values()}
    lost = []
    for name, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path.resolve()
            anchor_is_there = (
                not parts.fragment or target not in known or unquote(parts.fragment) in known[target].anchors
            )
            if not (target.exists() and anchor_is_there):
                lost.append((name, link))
    assert lost == []


def test_pages_load_nothing_from_elsewhere(
    built: tuple[Path, subprocess.CompletedProcess[str]], pages: dict[str, Page]
) -> None:
    folder, _ = built
    outside = [(name, one) for name, page in pages.items() for one in page.loads if re.match(r"(\w+:)?//", one)]
    for style in folder.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        outside += [(style.name, one) for one in re.findall(r"""(?:url\(|@import)\s*["']?((?:\w+:)?//[^"')]+)""", text)]
    assert outside == []
    assert sum(len(page.loads) for page in pages.values()) > len(pages)  # they do load styles, from beside themselves


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_class_and_function_is_in_the_reference(module: str, named: set[str]) -> None:
    """It may stand there under the first of several names."""
    public = importlib.import_module(module)
    missing = []
    for name in public.__all__:
        member = getattr(public, name)
        if inspect.isclass(member) or inspect.isfunction(member):
            homes = {f"{module}.{name}", f"{member.__module__}.{member.__qualname__}", f"distlfm.{name}"}
            missing += [name] if not homes & named else []
    assert missing == []


def test_every_verb_and_option_is_in_the_reference(named: set[str]) -> None:
    found = {"-".join(("distlfm", *words)): command for words, command in verbs().items()}
    assert "distlfm-federated-provision-link" in found
    assert set(found) - named == set()
    options = {
        f"{name}.{option}"
        for name, command in found.items()
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for option in parameter.opts
    }
    assert options - named == set()


def test_every_key_of_a_config_and_every_parameter_is_in_the_reference(
    built: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = built
    text = (folder / "docs" / "reference" / "keys.html").read_text(encoding="utf-8")
    shown = set(re.findall(r'<span class="pre">([\w.]+)</span>', text))
    wanted: set[str] = set()
    models: list[type[BaseModel]] = [*every_verb().values(), SiteConfig, SitePolicy, LinkConfig, NodeConfig]
    for model in models:
        wanted |= set(model.model_fields)
    for kind, system in known_systems().items():
        wanted |= {f"mechanism.{name}" for name in system.Options.model_fields}
        outputs = system.Options(kind=kind).outputs or ("output",)
        wanted |= {one.name for one in build_system({"kind": kind}, outputs).parameters()}
    wanted |= {"run.seed", "force.kernel.kind", "inference.variational.solver.rtol", "data.columns.time"}
    assert wanted - shown == set()
