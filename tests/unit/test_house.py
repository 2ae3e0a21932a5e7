"""What `python -m benchmarks house` counts as code, as a module, and as an importer."""

from __future__ import annotations

from pathlib import Path

from benchmarks.house import GROWN, PROJECT, SINCE, changing_with, code_lines, importers_of, modules_of, run

SOURCE = '''"""A docstring
of two lines."""

import os  # with a comment

NAME = """a text
of two lines"""
"""What the name is for."""


def work() -> None:
    """Does nothing."""
    # Why.
    return None
'''


def test_docstrings_comments_and_blank_lines_are_not_code() -> None:
    assert code_lines(SOURCE) == 5


def test_a_module_behind_a_link_is_counted_once(tmp_path: Path) -> None:
    for folder in ("distlfm", "launch", "federated"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "one.py").touch()
    (tmp_path / "distlfm" / "launch").symlink_to("../launch")
    assert sorted(modules_of(tmp_path)) == ["distlfm/one.py", "federated/one.py", "launch/one.py"]


def test_a_module_is_imported_by_its_name_or_by_something_in_it() -> None:
    modules = {
        "distlfm/a.py": "from distlfm import b\nfrom distlfm.launch.c import thing\n",
        "distlfm/b.py": "import distlfm.launch.c\nfrom . import a\n",
        "launch/c.py": "",
    }
    assert importers_of(modules) == {
        "distlfm/a.py": {"distlfm/b.py"},
        "distlfm/b.py": {"distlfm/a.py"},
        "launch/c.py": {"distlfm/a.py", "distlfm/b.py"},
    }


def test_only_what_the_list_of_changes_says_is_new_is_counted_apart_from_version_0_1() -> None:
    new, old = " ".join((PROJECT / "CHANGELOG.md").read_text().split()).split("## 0.1.0")
    assert SINCE.keys() | GROWN.keys() <= set(modules_of(PROJECT))
    assert not SINCE.keys() & GROWN.keys()
    named = [*SINCE.values(), *(words for _, words in GROWN.values())]
    assert [words for words in named if words not in new or words in old] == []


READERS = {
    "option": "def f(model): return model.likelihood.options.floor**2\n",
    "config": "def f(likelihood): return likelihood.noise == 'learned'\n",
    "class": "from distlfm.likelihoods.gaussian import Gaussian\n",
    "module": "from distlfm.likelihoods import gaussian\n",
    "parameter": "def f(values): return values['drift_time']\n",
}
OTHERS = {
    "contract": "from distlfm.likelihoods.base import key_of\ndef f(model): return model.likelihood.drift\n",
    "kind": "def f(model): return model.likelihood.options.kind\n",
    "words": "FIX = 'Set likelihood.noise=learned.'\n",
    "another": "def f(options): return options.floor\n",
}


def test_a_module_changes_with_the_likelihood_if_it_names_what_a_shipped_one_has() -> None:
    rooms = {"distlfm/likelihoods/gaussian.py": READERS["option"], "distlfm/study/parts.py": READERS["parameter"]}
    modules = rooms | {f"distlfm/{name}.py": text for name, text in (READERS | OTHERS).items()}
    assert changing_with(modules)["the likelihood"] == [f"distlfm/{name}.py" for name in READERS]


def test_a_module_changes_with_the_time_scheme_if_it_names_its_weights() -> None:
    weight, whole = "def f(grid): return grid.scheme.old\n", "def f(grid, x): return grid.scheme.mix(x)\n"
    paths = ("distlfm/solvers/field/scheme.py", "distlfm/weight.py")
    modules = dict.fromkeys(paths, weight) | {"distlfm/whole.py": whole, "distlfm/key.py": "hmac.new(key)\n"}
    assert changing_with(modules)["the time scheme"] == ["distlfm/weight.py"]


def test_a_module_changes_with_the_head_if_it_names_its_weights() -> None:
    modules = {
        "distlfm/lfo/heads.py": "",
        "distlfm/name.py": "NAME = 'second.estimate.bias'\n",
        "distlfm/text.py": "TEXT = 'One of first.level.*'\n",
        "federated/use.py": "def f(model): return model.first.project\n",
        "distlfm/other.py": "NAME = 'first.name'\ndef f(row): return row.first.value, model.project\n",
    }
    changing = changing_with(modules)["the operator's head"]
    assert changing == ["distlfm/lfo/heads.py", "distlfm/name.py", "distlfm/text.py", "federated/use.py"]


def test_the_layout_keeps_to_its_goals() -> None:
    """What grows without a capability that SINCE or GROWN names fails here; slim elsewhere, or record it with its words
    in the list of changes."""
    figures = run(quick=True)["figures"]
    assert {what: figure for what, figure in figures.items() if not figure["ok"]} == {}
