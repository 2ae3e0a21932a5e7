"""A site's Flower app: it answers rounds and questions from the site's own folder, within the site's own policy.

All messages pass `secure_mod` first; what these functions return is masked before it leaves. Most messages of a secure
sum never get here, so everything large is imported when it is needed.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from distlfm.federated.audit import AuditLog
from distlfm.federated.refused import Reason, Refused
from distlfm.federated.secure.memory import draft_folder
from distlfm.federated.secure.mod import VOTE, WEIGHT, secure_mod, with_noise
from distlfm.federated.secure.noise import SumNoise
from distlfm.federated.site.policy import (
    SitePolicy,
    check_exact,
    check_examples,
    check_local,
    check_noise,
    is_private,
    policy_of,
)

if TYPE_CHECKING:
    from distlfm.federated.codec import Vector
    from distlfm.federated.settings import RoundTask
    from distlfm.federated.site.work import Part, Site, Trained

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
SHARED = "shared"
FINAL = "final"
"""In a round's config: its weights are those that the run has found, to be kept and not to be answered with others."""

LARGEST_WEIGHT = 1e6
"""Largest weight that is accepted. Beyond it the grain of floating point would be seen in noise that is added."""

app = ClientApp(mods=[secure_mod])


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round: the weights that came, tuned on the site's patients. Nothing else leaves: no loss, no figures.

    The site makes its own copy of the weights at a run's end, and all that leaves is that it was there.
    """
    from distlfm.federated.site.votes import check_handed

    policy, site, run = policy_of(context), site_of(context), str(context.run_id)
    is_final = bool(message.content.config_records[CONFIG].get(FINAL, False))
    task = task_of(
        message, policy, site, run, "The run's model, to be kept and tuned further here: " if is_final else ""
    )
    vector = vector_of(message, policy, site, task)
    check_examples(policy, site.used_a_step(task))
    if is_final:
        measured = check_handed(site.folder / "model", run, vector)
        AuditLog(policy.audit).append("model", run, measured_here=measured)
        check_patients(policy, site, vector, task, "train")
        site.personalise(vector, task, draft_folder())
        return answer(message, {}, site.weight(site.count(task.kind, "train")))
    check_exact(policy, "train", site.privacy)
    check_noise(policy, task.noise)
    if task.noise is not None and (site.privacy is None or site.privacy.mechanism != "shared"):
        raise Refused(
            Reason.TASK,
            "The sites bring the noise of this round together, and this one would bring none. Set `privacy: "
            "{mechanism: shared}` in its site.yaml, or take `noise` out of the task.",
        )
    check_patients(policy, site, vector, task, "train")
    if policy.noise_multiplier:
        site.count_update(policy.noise_multiplier, run)
    done = site.train(vector, task, run, draft_folder())
    sent, noise = hardened(policy, vector, done)
    log_spent(policy, site, context)
    return answer(message, {}, done.num_patients, noise, arrays=ArrayRecord({SHARED: Array(sent)}))


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Figures of the model that came, for the patients that choose."""
    return evaluated(message, context, "choose", chooses=True)


@app.query("model")
def question_model(message: Message, context: Context) -> Message:
    """How good the model that came is for the federation's patients: loss, error, coverage."""
    return evaluated(message, context, "test")


@app.query("cohort")
def question_cohort(message: Message, context: Context) -> Message:
    """What the federation's patients are like: level, spread, share of missing values."""
    policy, site, run = policy_of(context), site_of(context), str(context.run_id)
    AuditLog(policy.audit).append("task", run, asked="Level, spread and missing values of the patients to learn from.")
    check_examples(policy, site.count("physics", "train"))
    check_exact(policy, "query", site.privacy)
    figures, count = site.statistics(run=run)
    log_spent(policy, site, context)
    return answer(message, figures, site.weight(count))


def evaluated(message: Message, context: Context, part: Part, *, chooses: bool = False) -> Message:
    """Figures of the model that came, on patients that nobody tunes on, and a vote on it where models are chosen.

    A site with a budget abstains: its vote would be an answer without noise.
    """
    from distlfm.federated.site.tuning import names_of
    from distlfm.federated.site.votes import AGAINST, vote_on

    policy, site, run = policy_of(context), site_of(context), str(context.run_id)
    against = message.content.config_records[CONFIG].get(AGAINST, "")
    purpose = "of the patients that choose" if chooses else "of those that measure"
    task = task_of(message, policy, site, run, f"Figures of the weights that came, {purpose}, for the task: ")
    check_examples(policy, site.count(task.kind, part))
    vector = vector_of(message, policy, site, task)
    check_exact(policy, "evaluate" if chooses else "query", site.privacy)
    check_patients(policy, site, vector, task, part)
    figures, count = site.evaluate(vector, task, run, part)
    log_spent(policy, site, context)
    reply = answer(message, figures, site.weight(count))
    if chooses:
        votes = policy.votes_a_day > 0 and site.ledger is None
        loss = figures[names_of(task.kind)[0]] if votes else None
        cast = vote_on(site.folder / "model", draft_folder(), run, vector, loss, str(against))
        if cast is not None:
            reply.content[VOTE] = ConfigRecord({VOTE: cast})
    return reply


def site_of(context: Context) -> Site:
    """The site of this process, with its policy's budget."""
    from distlfm.federated.site.ledger import Ledger
    from distlfm.federated.site.receipts import check_ledger
    from distlfm.federated.site.work import LEDGER, Site

    policy = policy_of(context)
    budget = None if policy.epsilon is None else (policy.epsilon, policy.delta)
    counted = policy.delta if policy.noise_multiplier else None
    site = Site(Path(str(context.node_config["site"])), budget, counted)
    check_ledger(Ledger(site.folder / LEDGER, math.inf, policy.delta), policy.audit)
    return site


def task_of(message: Message, policy: SitePolicy, site: Site, run: str, what: str) -> RoundTask:
    """What is asked, if the policy allows it; a site understands only its own package's words, and logs them.

    Both ends must mean the same operator: with another, its weights would be noise. what: for the log, before the task.
    """
    from pydantic import ValidationError

    from distlfm.federated.settings import RoundTask
    from distlfm.federated.site.contract import check_task, in_words
    from distlfm.federated.site.work import codec_of

    config = message.content.config_records[CONFIG]
    if config.get("base") != site.digest:
        raise Refused(Reason.MALFORMED, "The coordinator's operator is not the one of this site.")
    try:
        task = RoundTask.model_validate_json(str(config["task"]))
    except (ValidationError, KeyError):
        raise Refused(Reason.MALFORMED, "The task is not one of this package.") from None
    local, codec = site.stays_here(task), codec_of(site.base.model, task)
    AuditLog(policy.audit).append("task", run, asked=what + in_words(task, codec.size, local))
    check_local(policy, local)
    shared = site.privacy is not None and site.privacy.mechanism == "shared"
    check_task(policy.task, task, codec.names, shared=shared)
    return task


def vector_of(message: Message, policy: SitePolicy, site: Site, task: RoundTask) -> Vector:
    """The weights that came, [D], if training could have brought them."""
    import numpy as np

    from distlfm.federated.site.contract import check_weights
    from distlfm.federated.site.work import codec_of

    vector = np.asarray(message.content.array_records[ARRAYS][SHARED].numpy(), np.float64)
    if not bool(np.all(np.abs(vector) <= LARGEST_WEIGHT)):  # false for NaN too
        raise Refused(Reason.MALFORMED, "Weights that are not numbers, or larger than any network's.")
    if not is_private(site.privacy):  # else noise hides what any weights bring out
        check_weights(site.base.model, codec_of(site.base.model, task), vector, policy.task.drift)
    return vector


def check_patients(policy: SitePolicy, site: Site, vector: Vector, task: RoundTask, part: Part) -> None:
    """Refuse weights [D] that are made to measure for few patients of a part; with a budget, noise hides them."""
    from distlfm.federated.site.contract import check_effect

    if policy.task.effective > 1 and not is_private(site.privacy):
        effect = site.effect(vector, task, part, policy.min_examples, policy.task.weakest)
        check_effect(policy.task, effect, figures=part != "train")


def hardened(policy: SitePolicy, before: Vector, done: Trained) -> tuple[Vector, SumNoise | None]:
    """Clip and noise the update as the policy says, on top of whatever the site's own work did.

    Each site adds noise of its own, of standard deviation `noise_multiplier · clip` in each number. The federation's
    mean, of sites that count as n₁, n₂, …, then has that times √(n₁² + n₂² + …) / (n₁ + n₂ + …). Updates whose noise
    the sites bring together have theirs already.
    """
    if policy.clip is None or not policy.noise_multiplier or done.noise is not None:
        return done.vector, done.noise
    from distlfm.federated.site.privacy import shortened

    own = SumNoise({SHARED: policy.noise_multiplier * policy.clip * policy.weight(done.num_patients)})
    return shortened(before, done.vector, policy.clip), own


def log_spent(policy: SitePolicy, site: Site, context: Context) -> None:
    """Say in the site's audit log what all answers so far have cost, where that is counted."""
    ledger = site.known_ledger(policy.delta)
    if ledger is not None:
        from distlfm.federated.site.receipts import write_receipt

        write_receipt(ledger, AuditLog(policy.audit), str(context.run_id))


def answer(
    message: Message, figures: dict[str, float], count: int, noise: SumNoise | None = None, **arrays: ArrayRecord
) -> Message:
    """A reply in the form that strategies expect. noise: what its numbers get before they are masked."""
    metrics = MetricRecord({WEIGHT: float(count), **figures})
    return Message(with_noise(RecordDict({**arrays, METRICS: metrics}), noise), reply_to=message)
