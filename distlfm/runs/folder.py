"""The folder of a run: made before the work, checked on resuming, and with summary and report at its end.

`versions` says what made the numbers of a run.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from distlfm.config import Config, build, digest, dump, fingerprint, read_yaml
from distlfm.errors import OtherWork, UsageError
from distlfm.inference.findings.scores import Row, Tally, figures_of
from distlfm.inference.method import FIELDS, SERIES
from distlfm.inference.result import FitResult
from distlfm.likelihoods import LIKELIHOODS
from distlfm.mechanisms.build import code_of, find_system, own_code
from distlfm.mechanisms.field import FieldMechanism
from distlfm.runs import CONFIG, REPORT, SUMMARY
from distlfm.runs.settings import EvaluateConfig, FitConfig, GenerateConfig, QueryConfig
from distlfm.solvers.field.scheme import CRANK_NICOLSON, SCHEMES
from distlfm.store import Store
from distlfm.store.files import finite, no_place, replacing, storing
from distlfm.store.metadata import RUN_STORE, is_store
from distlfm.version import __version__


def versions() -> dict[str, str]:
    """What made the numbers."""
    return {"distlfm": __version__, "torch": torch.__version__, "python": platform.python_version()}


def overall(tally: Tally, config: FitConfig | QueryConfig | EvaluateConfig, **more: Any) -> dict[str, Any]:
    """What summary.json says besides the instances, of any run that has scores."""
    return {**tally.to_summary(), **more, "config_hash": fingerprint(config.work()), "versions": versions()}


COMMANDS = {
    **{verb: verb for verb in ("fit", "generate", "simulate", "train", "tune", "evaluate", "query")},
    "federated": "federated simulate",
    "programme": "federated run",
}
"""Verbs that a config may be of, and how they are called."""


def begin(directory: Path, *folders: str) -> None:
    """Make the folder and those in it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for folder in folders:
            (directory / folder).mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as probe:  # rights alone do not tell of a read-only or full disk
            probe.write(b"\0")
            probe.flush()
    except OSError as error:
        if is_store(directory) or (directory / CONFIG).exists():  # a run that was begun goes on there and nowhere else
            with storing("anything", directory):
                raise
        raise no_place(directory, error) from None


def refuse_others(directory: Path, config: Config) -> None:
    """Refuse a folder that is not a run yet, and has files which a run would write over."""
    if is_store(directory / RUN_STORE):
        return
    for name in (CONFIG, SUMMARY, REPORT):
        file = directory / name
        if file.exists() and not (name == CONFIG and _holds(file, dump(config))):
            cause = f"{directory} is not a run: it has no {RUN_STORE}; and a run would write over its {name}."
            raise UsageError(cause, ANOTHER)


def refuse_other_verbs(directory: Path, verb: str, written: Iterable[str], begun: str = CONFIG) -> None:
    """Refuse a folder with files which a run of `verb` would write over, unless they are of a run of that verb.

    written: names of what it writes besides its config. begun: a file that only such runs have, if there is one.
    """
    file = directory / CONFIG
    if os.path.lexists(file):  # unlike Path.exists, it leaves names that cannot be to whoever makes the folder
        other = _verb_of(file)
        if other == verb:
            return
        if other in COMMANDS:
            there, mine = f"`distlfm {COMMANDS[other]}`", f"`distlfm {COMMANDS[verb]}`"
            raise UsageError(f"{directory} is a run of {there}, and {mine} would write over its {CONFIG}.", ANOTHER)
    elif os.path.lexists(directory / begun):
        return
    for name in (CONFIG, *written):
        if os.path.lexists(directory / name):
            cause = f"{directory} is not a run of `distlfm {COMMANDS[verb]}`, which would write over its {name}."
            raise UsageError(cause, ANOTHER)


def _verb_of(file: Path) -> str:
    """The verb that a config names, if it is one that can be read."""
    try:
        return str(read_yaml(file).get("verb"))
    except UsageError:
        return ""


def _holds(file: Path, text: str) -> bool:
    try:
        return file.read_text(encoding="utf-8") == text
    except (OSError, UnicodeDecodeError):
        return False


ANOTHER = "Choose another --out directory."
ELSEWHERE = "Give the config and data it was begun with, or another --out directory."


def identity(config: FitConfig | GenerateConfig) -> dict[str, Any]:
    """The attributes by which a store is known as that of a config, wherever the config's files lie."""
    work = config.work()
    codes = {
        "equation": own_code(config.mechanism["kind"]),
        "likelihood": code_of(LIKELIHOODS.find(config.likelihood.kind)),
    }
    if issubclass(find_system(config.mechanism["kind"]), FieldMechanism):
        scheme = SCHEMES.find(config.mechanism.get("scheme", CRANK_NICOLSON.name))
        codes["scheme"] = None if scheme == CRANK_NICOLSON else digest(repr(scheme))
    if isinstance(config, FitConfig):
        codes["method"] = code_of({**FIELDS, **SERIES}[config.inference.method])
    return {
        "mechanism": config.mechanism["kind"],
        "config": work.model_dump(mode="json"),
        "config_hash": fingerprint(work),
        **{what: code for what, code in codes.items() if code is not None},
    }


def same_settings(store: Store, config: FitConfig | GenerateConfig, block: int | None) -> None:
    """Refuse to go on with a store that was begun with other settings, and say what differs."""
    known = identity(config)
    kept, path = store.spec.attributes, store.path
    if "merged_from" in kept:
        raise OtherWork(
            f"{path} was merged from other stores, and what it lacks is theirs.",
            "Resume those, and merge again; or choose another --out directory.",
        )
    begun, digested = _read_anew(kept.get("config", {}), kept.get("config_hash"), type(config))
    refuse_changed(path, begun, known["config"])
    if digested != known["config_hash"]:
        raise OtherWork(f"{path} was begun with another config (its hash is {kept.get('config_hash')}).", ELSEWHERE)
    method = config.inference.method if isinstance(config, FitConfig) else ""
    names = {"equation": known["mechanism"], "likelihood": config.likelihood.kind, "method": method}
    for what, name in (names | {"scheme": config.mechanism.get("scheme")}).items():
        if kept.get(what) is not None and kept[what] != known.get(what):
            raise OtherWork(
                f"{path} was begun with another {name}: the file of that {what} has changed since.",
                f"Choose another --out directory for the {what} as it is now.",
            )
    if block is not None and block != store.spec.block:
        raise OtherWork(
            f"{path} was begun in blocks of {store.spec.block} instances, not {block}.",
            "Leave run.batch out, or choose another --out directory.",
        )


def _read_anew(
    kept: Mapping[str, Any], digested: str | None, kind: type[FitConfig | GenerateConfig]
) -> tuple[Mapping[str, Any], str | None]:
    """A store's config and its hash as they would be kept today: keys that were not known then have their defaults."""
    if digested != digest(json.dumps(kept, sort_keys=True)):
        return kept, digested
    try:
        now = build(kind, dict(kept)).work()
    except UsageError:
        return kept, digested
    return now.model_dump(mode="json"), fingerprint(now)


def refuse_changed(run: Path, earlier: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse to go on with a run that was begun with other settings, and name the first that differs."""
    before, now = _flat(earlier), _flat(given)
    differing = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    if differing:
        key, more = differing[0], len(differing) - 1
        others = f", and {more} more settings differ" if more else ""
        cause = f"{run} was begun with {key}={before.get(key)!r}, and it is {now.get(key)!r} now{others}."
        raise OtherWork(cause, ELSEWHERE)


def same_data(store: Store, data: str) -> None:
    """Refuse to go on with a store that was begun with other data. data: the fingerprint of those given now."""
    if store.spec.attributes.get("data") != data:
        raise OtherWork(f"{store.path} was begun with other data: they have changed since.", ELSEWHERE)


def forget_report(directory: Path) -> None:
    """Remove the summary and the report of a run of which something is to be done again."""
    for name in (SUMMARY, REPORT):
        with storing(name, directory):
            (directory / name).unlink(missing_ok=True)


def write_config(directory: Path, config: Config) -> None:
    """Keep the resolved config, from which the run can be resumed."""
    _replace(directory / CONFIG, [dump(config)])


def write_summary(directory: Path, rows: Iterable[Row], overall: Mapping[str, Any]) -> None:
    """summary.json, with the instances streamed into it."""
    _replace(directory / SUMMARY, _summary(rows, overall))


def _summary(rows: Iterable[Row], overall: Mapping[str, Any]) -> Iterator[str]:
    head = json.dumps(finite(overall), indent=2, allow_nan=False)
    yield head.removesuffix("\n}") + ',\n  "instances": [\n'
    between = ""
    for row in rows:
        yield f"{between}    {json.dumps(finite(figures_of(row)), allow_nan=False)}"
        between = ",\n"
    yield "\n  ]\n}\n"


def write_page(
    directory: Path, tally: Tally, results: Mapping[str, FitResult], config: Config, overall: Mapping[str, Any]
) -> None:
    """report.html."""
    from distlfm.report.fit_page import fit_page  # draws; workers never do

    kept = {"seed": config.model_dump()["run"]["seed"], "hash": overall["config_hash"], "versions": overall["versions"]}
    fit_page(directory / REPORT, tally, results, dump(config), kept, overall.get("notices", ()))


def _replace(path: Path, text: Iterable[str]) -> None:
    """Write a file so that it is there whole, or as it was before."""
    with storing(path.name, path.parent), replacing(path) as draft, draft.open("w", encoding="utf-8") as file:
        file.writelines(text)


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat
