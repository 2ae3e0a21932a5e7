"""What a site does with its own patients: fit them, tune the operator on them, measure it, keep its own copy.

Everything is in the site's folder: site.yaml, model/base.pt (the operator that all begin with), fits/ (its own pairs),
cohort.json, ledger.jsonl, model/local.pt (weights that stay here) and model/operator.pt (what its clinicians ask).
"""

from __future__ import annotations

import copy
import hashlib
import logging
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from distlfm.config import build, dump, load
from distlfm.errors import UsageError
from distlfm.federated.codec import SHARED, Codec, Vector, chosen, weights_digest
from distlfm.federated.refused import Reason, Refused
from distlfm.federated.secure.noise import SumNoise
from distlfm.federated.settings import PrivacyConfig, RoundTask, SiteConfig
from distlfm.federated.site.cohort import FILE as COHORT
from distlfm.federated.site.cohort import FITS, Cohort, Index, groups, patient_of
from distlfm.federated.site.contract import Effect, effect_of
from distlfm.federated.site.data import fit_config, fit_patients, records, site_store, unlabelled
from distlfm.federated.site.ledger import Ledger
from distlfm.federated.site.privacy import (
    check_grain,
    noised,
    private_mean,
    refuse_whole,
    shortened,
    summed_updates,
    tune_privately,
)
from distlfm.federated.site.tuning import NotFinite, names_of, patient_figures, tune
from distlfm.lfo import Batch, Examples, FourierOperator, Operator, load_checkpoint, save_checkpoint
from distlfm.lfo.tail import adapter_parameters
from distlfm.runtime.process import torch_threads
from distlfm.runtime.reporting import Reporter, Silent
from distlfm.store import is_store
from distlfm.store.files import put_quickly, storing

SETTINGS, LEDGER = "site.yaml", "ledger.jsonl"
BASE, OWN, LOCAL = "model/base.pt", "model/operator.pt", "model/local.pt"
LOCAL_KIND = "distlfm local weights"

Part = Literal["train", "choose", "test"]


@dataclass(frozen=True)
class Trained:
    """What leaves a site after a round, before it is masked: the shared weights [D], and how many patients were used.

    noise: what they get before the mask; None if they have it, or need none.

    `Site.evaluate` alone says how good a model is: with its own cohort, its own limits and its own price.
    """

    vector: Vector
    num_patients: int
    noise: SumNoise | None = None


def own_checkpoint(folder: Path) -> Path:
    """What clinicians of a site ask: its personalised copy, or the base before there is one."""
    own = folder / OWN
    return own if own.exists() else folder / BASE


def open_operator(path: Path) -> Operator:
    """An operator whose weights may change; a loaded one keeps products of them."""
    found = Operator.load(path)
    model = FourierOperator(found.config, found.schema)
    model.load_state_dict(found.model.state_dict())
    return replace(found, model=model.eval().requires_grad_(False))


def codec_of(model: FourierOperator, task: RoundTask) -> Codec:
    """What of a model travels in a task."""
    if task.adapter == "none":
        return Codec(model, task.shared, task.local)
    return Codec(model, adapter_parameters(model, task.adapter), task.local)


def write_site(folder: Path, config: SiteConfig, operator: Operator) -> Site:
    """A new site's folder, or the same settings written again."""
    with storing(SETTINGS, folder):
        (folder / "model").mkdir(parents=True, exist_ok=True)
        put_quickly(folder / SETTINGS, dump(config).encode())
    operator.save(folder / BASE)
    return Site(folder)


class Site:
    """A site, from its folder. budget: ε and δ of the site's policy, which take the place of site.yaml's own. If that
    says nothing of privacy, the sites bring their noise together.

    counted: δ of a policy that asks for noise, though there may be no budget: then figures have noise too, and what
    leaves is written down in the ledger, which stops nothing.
    """

    def __init__(self, folder: Path, budget: tuple[float, float] | None = None, counted: float | None = None) -> None:
        self.folder, self.counted = Path(folder), counted
        self.config = load(SiteConfig, self.folder / SETTINGS)
        self.privacy = self.config.privacy
        if budget is not None:
            settings = {"mechanism": "shared"} if self.privacy is None else self.privacy.model_dump()
            self.privacy = build(PrivacyConfig, {**settings, "epsilon": budget[0], "delta": budget[1]})

    @cached_property
    def base(self) -> Operator:
        """The operator that all began with."""
        return open_operator(self.folder / BASE)

    @cached_property
    def digest(self) -> str:
        return weights_digest(self.base.model)

    @property
    def ledger(self) -> Ledger | None:
        """What was spent: of the budget, or only counted; None where there is neither a budget nor noise."""
        if self.privacy is not None:
            return Ledger(self.folder / LEDGER, self.privacy.epsilon, self.privacy.delta)
        return None if self.counted is None else Ledger(self.folder / LEDGER, math.inf, self.counted)

    def check(self) -> None:
        """Refuse an operator of another equation than the patients', before a round stumbles over it."""
        schema = self.base.schema
        if self.config.fit is not None:
            here, there = self.config.fit.get("mechanism", {}).get("kind"), schema.mechanism.get("kind")
            if here != there:
                raise UsageError(
                    f"{self.folder / BASE} is an operator of {there!r}, and {SETTINGS} fits patients by {here!r}.",
                    "Copy the federation's first operator there, or mend mechanism.kind; all sites have the same.",
                )
        if self.config.store is not None or is_store(self.folder / FITS):
            store = site_store(self.folder, self.config)
            if not store.missing():
                schema.check(store)

    def prepare(self, reporter: Reporter | None = None) -> int:
        """Fit the site's patients into its own store. Returns how many records and windows were left out."""
        if (self.folder / BASE).exists():
            self.check()
        with torch_threads(self.config.threads):
            return fit_patients(self.folder, self.config, reporter or Silent())

    @cached_property
    def _labelled(self) -> Batch:
        store = site_store(self.folder, self.config)
        examples = Examples([store], self.base.schema)
        return examples.batch(range(len(examples)))

    @cached_property
    def _unlabelled(self) -> Batch:
        """The records alone: nothing was fitted, or the fits are left aside."""
        if self.config.fit is None:
            known = self._labelled
            force, params = (torch.full_like(one, torch.nan) for one in (known.force, known.params))
            return replace(known, force=force, params=params)
        data = fit_config(self.folder, self.config).data
        return unlabelled(self.base, records(data, self.config.windows, self.config.patients)[0])

    def windows(self, kind: str = "pairs", part: Part = "train") -> Batch:
        """The windows of the patients that are learned from, that choose between models, or that measure."""
        whole, rows = self._rows(kind, part)
        if not len(rows):
            raise UsageError(
                f"The site {self.config.name} has no patients to {part}.",
                f"Give it more patients, or another seed and no {COHORT} before its first answer.",
            )
        return whole.at(rows.tolist())

    def _rows(self, kind: str, part: Part) -> tuple[Batch, Index]:
        """All windows, and which of them are those of a part of the patients."""
        whole = self._unlabelled if kind == "physics" else self._labelled
        config = self.config
        others: Callable[[], Sequence[str]] = tuple if config.fit is None else lambda: self._unlabelled.ids
        cohort = Cohort.open(self.folder, whole.ids, config.choose, config.test, config.seed, others)
        return whole, cohort.rows(whole.ids, getattr(cohort, part))

    def count(self, kind: str, part: Part) -> int:
        """How many patients of a part there are."""
        whole, rows = self._rows(kind, part)
        return len({patient_of(whole.ids[row]) for row in rows})

    def train(self, vector: Vector, task: RoundTask, run: str = "", into: Path | None = None) -> Trained:
        """Tune from the weights that came. With a budget all steps are paid for first, or nothing is done.

        The site's own copy is the best of what came, what was made of it, and the base. It and the weights that stay
        here are written into the folder `into`, or else into the site's model.
        """
        operator, codec = self._placed(vector, task)
        batch, common = self.windows(task.kind), copy.deepcopy(operator)
        with torch_threads(self.config.threads):
            if self.privacy is not None and self.privacy.mechanism == "shared":
                return self._together(operator, codec, vector, batch, task, run)
            if self.privacy is None:
                try:
                    weights, used = self._tuned(operator, codec, self.stays_here(task), batch, task)
                except NotFinite as error:  # an answer that changes nothing would leave the sum to the others
                    raise Refused(Reason.TASK, str(error), told=True) from None
                local = {name: weight for name, weight in weights.items() if name not in codec.names}
                if local:
                    save_checkpoint((into or self.folder / "model") / Path(LOCAL).name, {"weights": local}, LOCAL_KIND)
                sent = codec.encode(operator.model.state_dict())
            else:
                sent, used = self._privately(operator, codec, vector, batch, task, run)
            self._keep_best(common, operator, task.kind, into)
        # How many patients a site has is taken as public; what their records are is not.
        seen = len(groups([name for name, one in zip(batch.ids, used.tolist(), strict=True) if one]))
        return Trained(sent, self.weight(seen))

    def used_a_step(self, task: RoundTask) -> int:
        """Return how many patients each step of a task sees; DP-SGD draws from all, whatever the batch is."""
        count = self.count(task.kind, "train")
        whole = task.batch == 0 or (self.privacy is not None and self.privacy.mechanism != "update")
        return count if whole else min(task.batch, count)

    def effect(
        self, vector: Vector, task: RoundTask, part: Part = "train", enough: int = 5, weakest: float = 1e-3
    ) -> Effect:
        """Measure how many patients of a part would be behind an answer with these weights, in effect."""
        operator, codec = self._placed(vector, task)
        random = torch.Generator().manual_seed(secrets.randbits(63))
        batch = self.windows(task.kind, part)
        with torch_threads(self.config.threads):
            return effect_of(operator, self.base, codec.names, batch, task, random, enough, weakest)

    def stays_here(self, task: RoundTask) -> tuple[str, ...]:
        """Return the names of the weights that a task tunes and leaves at the site."""
        return chosen([name for name, _ in self.base.model.named_parameters()], task.local)

    def _generator(self, task: RoundTask) -> torch.Generator:
        """Return what batches are drawn with: known to nobody, but for a simulation that has to be repeatable."""
        if self.config.batch_seed is None:
            return torch.Generator().manual_seed(secrets.randbits(63))
        settings = f"{self.config.batch_seed}/{self.config.name}/{task.seed}"
        return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(settings.encode()).digest()[:7], "big"))

    def _tuned(
        self, operator: Operator, codec: Codec, local: Sequence[str], batch: Batch, task: RoundTask
    ) -> tuple[Mapping[str, Tensor], Tensor]:
        """Tune the operator, in place. local: weights that are tuned besides the shared ones, and stay here.

        Returns the tuned weights, and which windows were used, [B] of bool.
        """
        return tune(operator, [*codec.names, *local], codec.names, batch, task, self._generator(task))

    def _privately(
        self, operator: Operator, codec: Codec, vector: Vector, batch: Batch, task: RoundTask, run: str
    ) -> tuple[Vector, Tensor]:
        """The new shared weights, of which the noise is part, and which windows were used; weights that stay here are
        left alone. Whom DP-SGD takes in its steps is part of what it hides, so there all windows count as used.
        """
        privacy, ledger = self.privacy, self.ledger
        assert privacy is not None
        assert ledger is not None
        if privacy.mechanism == "patients":
            if task.adapter == "none":
                refuse_whole()
            ledger.charge("train", noise=privacy.noise, rate=privacy.sample, steps=task.steps, run=run)
            tune_privately(operator, codec.names, codec.names, batch, task, privacy)
            return codec.encode(operator.model.state_dict()), torch.ones(len(batch), dtype=torch.bool)
        self._charge_update(ledger, privacy.noise, run)
        used = torch.ones(len(batch), dtype=torch.bool)
        with suppress(NotFinite):  # then the noise stands alone
            _, used = self._tuned(operator, codec, (), batch, task)
        after = codec.encode(operator.model.state_dict())
        held = shortened(vector, after, privacy.clip) - vector
        return vector + noised(held, privacy.clip, privacy.noise), used

    def _together(
        self, operator: Operator, codec: Codec, vector: Vector, batch: Batch, task: RoundTask, run: str
    ) -> Trained:
        """The mean of the patients' updates, whose noise all sites bring together while they mask it."""
        ledger, noise = self.ledger, task.noise
        assert ledger is not None
        if noise is None:
            raise Refused(Reason.TASK, "The site's mechanism is `shared`, and the task has no noise.")
        if task.adapter == "none":
            refuse_whole()
        count = self.weight(len(groups(batch.ids)))
        check_grain(vector, count, noise)
        ledger.charge("shared", noise=noise.multiplier, rate=noise.sample, steps=1, run=run)
        total = summed_updates(operator, codec.names, batch, task, noise)
        spread = SumNoise({SHARED: noise.multiplier * noise.clip}, noise.lost)
        return Trained(vector + total / count, count, spread)

    def weight(self, count: int) -> int:
        """Return by how many patients the site counts in a sum; with a budget it may be a number that is stated."""
        return count if self.privacy is None or self.privacy.patients is None else self.privacy.patients

    def count_update(self, noise: float, run: str = "") -> None:
        """Write down an update that the policy noises as a whole, before the work. There is no budget to stop at, but
        one that is set later counts it. With a budget the work itself is private: noise on top of it costs no more.
        """
        if self.privacy is None:
            assert self.ledger is not None, "without noise there is nothing to be counted"
            self._charge_update(self.ledger, noise, run)

    def known_ledger(self, delta: float) -> Ledger | None:
        """All charges so far, budget or not; None where nothing was ever charged."""
        path = self.folder / LEDGER
        return Ledger(path, math.inf, delta) if path.exists() else None

    def _charge_update(self, ledger: Ledger, noise: float, run: str) -> None:
        """noise: in units of the clip. Two updates within the same ball are at most two radii apart."""
        ledger.charge("update", noise=noise / 2, rate=1.0, steps=1, run=run)

    def evaluate(
        self, vector: Vector, task: RoundTask, run: str = "", part: Part = "test"
    ) -> tuple[dict[str, float], int]:
        """Figures of a model for patients of the site that nobody learns from, and how many of these there are."""
        operator, _ = self._placed(vector, task)
        each = patient_figures(operator, self.windows(task.kind, part), names_of(task.kind))
        return self._released(each, "figures", run), self.count(task.kind, part)

    def statistics(self, run: str = "") -> tuple[dict[str, float], int]:
        """Figures of the cohort: level and spread of the first output, share of values missing."""
        batch = self.windows("physics", "train")
        seen = torch.where(batch.mask > 0, batch.values, torch.full_like(batch.values, torch.nan))[:, 0].flatten(1)
        normal = self.base.model.normal
        level = (torch.nanmean(seen, 1) - normal.value_mean[0]) / normal.value_sd[0]
        spread = (seen - torch.nanmean(seen, 1, keepdim=True)).square().nanmean(1).sqrt() / normal.value_sd[0]
        missing = 1 - batch.mask.flatten(1).mean(1)
        settings = {"level": level, "spread": spread, "missing": missing}
        rows = list(groups(batch.ids).values())
        each = {key: np.array([float(value[one].mean()) for one in rows]) for key, value in settings.items()}
        return self._released(each, "statistics", run), len(rows)

    def personalise(self, vector: Vector, task: RoundTask, into: Path | None = None) -> Path:
        """Tune the common model further on the site's own patients, for its clinicians alone. Nothing of it leaves.

        If that is no better for the patients that choose, the common model is the site's own, or the base.
        """
        operator, codec = self._placed(vector, task)
        common = copy.deepcopy(operator)
        with torch_threads(self.config.threads):
            self._tuned(operator, codec, self.stays_here(task), self.windows(task.kind), task)
            return self._keep_best(common, operator, task.kind, into)

    def chooses(self, operator: Operator, kind: str) -> float:
        """The mean loss of a model for the patients that choose, infinite for a broken one. It stays here: no noise."""
        loss = names_of(kind)[0]
        found = float(patient_figures(operator, self.windows(kind, "choose"), (loss,))[loss].mean())
        return found if math.isfinite(found) else math.inf

    def _keep_best(self, common: Operator, tuned: Operator, kind: str, into: Path | None) -> Path:
        """Write the site's own operator: the one that is best for the patients that choose, or else the tuned one.

        If that tuned one is worse than the base, say so in the site's own log; the federation's choice is by all.
        """
        path = (into or self.folder / "model") / Path(OWN).name
        if not self.count(kind, "choose"):
            return tuned.save(path)
        losses = [self.chooses(one, kind) for one in (tuned, common, self.base)]
        if losses[0] > losses[2]:
            logging.getLogger(__name__).warning(
                "%s: the update of this round is worse than the first operator for own patients that it was not tuned "
                "on. Fewer steps or an adapter (task.steps, task.adapter) may suit them better.",
                self.config.name,
            )
        return (tuned, common, self.base)[losses.index(min(losses))].save(path)

    def _released(self, each: Mapping[str, Vector], what: str, run: str) -> dict[str, float]:
        """Means over patients; where there is a budget, or noise on updates, they have noise and are paid for first."""
        ledger, privacy = self.ledger, self.privacy or PrivacyConfig(epsilon=1.0)
        if ledger is None:
            return {name: float(np.nanmean(values)) for name, values in each.items()}
        ledger.charge(what, noise=privacy.figures, rate=1.0, steps=len(each), run=run)
        return {name: private_mean(values, privacy) for name, values in each.items()}

    def _placed(self, vector: Vector, task: RoundTask) -> tuple[Operator, Codec]:
        """The operator with the weights that came and those that stay here, and what it shares."""
        operator = open_operator(self.folder / BASE)
        codec = codec_of(operator.model, task)
        codec.load(operator.model, vector)
        path = self.folder / LOCAL
        wanted = self.stays_here(task)
        if wanted and path.exists() and self.privacy is None:  # no noise is in them
            kept: dict[str, Tensor] = load_checkpoint(path, LOCAL_KIND)["weights"]
            operator.model.load_state_dict({name: kept[name] for name in wanted if name in kept}, strict=False)
        return operator, codec
