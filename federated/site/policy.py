"""What a site allows: one YAML file at the site, which no server can change.

The checks raise Refused. Limits by the day are kept in `secure/memory.py`, the cohort's in `secure/member.py`.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from flwr.app import Context
from pydantic import Field, PositiveFloat, model_validator

from distlfm.config import Config, load
from distlfm.errors import UsageError
from distlfm.federated.refused import Reason, Refused
from distlfm.federated.secure.messages import SiteName
from distlfm.federated.secure.rules import Rules
from distlfm.federated.settings import PrivacyConfig, SharedNoise
from distlfm.version import __version__

POLICY = "policy.yaml"

PublicKey = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Category = Annotated[str, Field(pattern=r"^(train|evaluate|query)$")]


class TaskLimits(Config):
    """shared: patterns of the weights that a round may tune and that travel; none stays here unless `local` names it.
    kinds, optimisers: that a round may use. lr, mu, steps, batch, clip: largest ones; batch 0, all windows, is allowed,
    and a round without a clip if `clip` is null. Without it a coordinator can make sites with larger gradients explode.
    seconds: longest work for one message. drift: how far a weight that came may be from the first operator's, in units
    of the largest weight of its tensor, or of 0.1 if that is more; a budget leaves this unchecked. effective: fewest
    patients that any unit's update may come from in effect, counted by the length of their gradients; with 1 no effect
    is checked, and none is with a budget. weakest: least length of the patients' gradients, in units of that with the
    first operator's weights; its inverse is the largest one.
    """

    shared: tuple[str, ...] = ("*",)
    kinds: tuple[Literal["pairs", "physics"], ...] = ("pairs", "physics")
    optimisers: tuple[Literal["sgd", "adam"], ...] = ("sgd", "adam")
    lr: PositiveFloat = 0.5
    mu: float = Field(default=100.0, ge=0)
    steps: int = Field(default=1000, ge=1)
    batch: int = Field(default=1024, ge=1)
    clip: PositiveFloat | None = 1.0
    seconds: PositiveFloat = 900.0
    drift: PositiveFloat = 0.25
    effective: float = Field(default=1.1, ge=1)
    weakest: float = Field(default=1e-3, ge=0, lt=1)


class SitePolicy(Config):
    """Relative paths start at the policy's folder.

    site: own name. signing_key: the site's Ed25519 key. state: folder of what the site remembers between messages.
    audit: the site's log. peers: public signing keys by site. package: the version of distlfm that is agreed on; any if
    null. allowed: message types, with `*` for any name. min_cohort: fewest sites at the start and at the end of a sum.
    min_examples: fewest patients used for an answer. most_examples: the most that this site counts for. weights:
    whether a site counts as every other, or by its patients; a round whose noise is shared always counts by these.
    figure_bound: most that a figure of this site counts. fixed_cohort: kinds of message that all pinned sites answer
    together or not at all; of others a part of them may, with covering noise. min_difference: fewest sites by which
    sums may differ without that noise; 1 allows all. cover_noise: its standard deviation, in units of `clip` or
    `figure_bound`. cover_answers: the most with that noise in an epoch. local: patterns of weights that a task may tune
    and leave at the site; none unless they are named here. task: bounds on what a round asks. clip: largest norm of an
    update. noise_multiplier: noise on it, in units of `clip`. colluders: sites that may help the server; noise that the
    sites bring together is enough without theirs. epsilon, delta: privacy budget; none if null, and above 10 as good as
    none. exact: kinds of message that are answered without one, so without noise that is counted: masking alone hides
    whose patients they are, and not what all of them together are. rounds_a_day, queries_a_day, bytes_a_day: limits by
    UTC day; whatever tells figures is a query, so `evaluate` is one too. refusals_a_day: refusals that depend on
    patients' records, after which nothing is worked for until tomorrow. votes_a_day: how often it tells, signed, if a
    round's model is better for its patients that choose.
    """

    site: SiteName
    signing_key: Path = Path("signing.key")
    state: Path = Path("state")
    audit: Path = Path("audit.jsonl")
    peers: dict[SiteName, PublicKey] = Field(default_factory=dict)
    package: str | None = None
    allowed: tuple[str, ...] = ("train", "evaluate", "query.*")
    min_cohort: int = Field(default=3, ge=2)
    min_examples: int = Field(default=5, ge=1)
    most_examples: int = Field(default=1000, ge=1)
    weights: Literal["patients", "equal"] = "equal"
    figure_bound: float = Field(default=10.0, gt=0)
    fixed_cohort: tuple[Category, ...] = ("train", "evaluate", "query")
    min_difference: int = Field(default=3, ge=1)
    cover_noise: float = Field(default=4.0, gt=0)
    cover_answers: int = Field(default=10, ge=0)
    local: tuple[str, ...] = ()
    task: TaskLimits = TaskLimits()
    clip: float | None = Field(default=None, gt=0)
    noise_multiplier: float = Field(default=0.0, ge=0)
    colluders: int = Field(default=1, ge=0)
    epsilon: float | None = Field(default=None, gt=0)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    exact: tuple[Category, ...] = ()
    rounds_a_day: int = Field(default=50, ge=0)
    refusals_a_day: int = Field(default=3, ge=1)
    queries_a_day: int = Field(default=100, ge=0)
    votes_a_day: int = Field(default=20, ge=0)
    bytes_a_day: int = Field(default=2_000_000_000, ge=0)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(set(self.peers.values())) != len(self.peers):
            raise ValueError("two peers have the same key")
        if self.noise_multiplier > 0 and self.clip is None:
            raise ValueError("noise_multiplier counts in units of clip: set clip too")
        return self

    def weight(self, patients: float) -> float:
        """Return what an answer of so many patients counts for."""
        return self.held(patients) if self.weights == "patients" else 1.0

    def held(self, patients: float) -> float:
        """Return what they count for where sites count by their patients."""
        return min(patients, float(self.most_examples))

    def rules(self) -> Rules:
        """What the members of secure sums hold to."""
        others = {site: key for site, key in self.peers.items() if site != self.site}
        return Rules(self.site, others, self.min_cohort, frozenset(self.fixed_cohort))


def load_policy(path: Path) -> SitePolicy:
    """Read `policy.yaml`, or that of a site's folder; its paths become absolute."""
    file = path / POLICY if path.is_dir() else path
    policy = load(SitePolicy, file)
    folder = file.resolve().parent
    places = {name: folder / getattr(policy, name) for name in ("signing_key", "state", "audit")}
    return policy.model_copy(update=places)


def policy_of(context: Context) -> SitePolicy:
    """The policy of the site in whose process a message is handled."""
    path = context.node_config.get("policy")
    if not isinstance(path, str):
        raise UsageError("This node has no policy.", "Start it with: distlfm federated site")
    return load_policy(Path(path))


def check_message(policy: SitePolicy, message_type: str) -> None:
    """Refuse kinds of message that the site does not answer."""
    if not any(fnmatch.fnmatchcase(message_type, pattern) for pattern in policy.allowed):
        raise Refused(Reason.MESSAGE, f"{message_type} is not among {', '.join(policy.allowed)}.")


def check_package(policy: SitePolicy) -> None:
    """Refuse to answer with a package that is not the agreed one."""
    if policy.package is not None and policy.package != __version__:
        raise Refused(Reason.PACKAGE, f"distlfm {__version__} is installed, and {policy.package} is agreed on.")


def check_local(policy: SitePolicy, names: Sequence[str]) -> None:
    """Refuse a task that leaves other weights at the site than the policy names.

    Whoever chooses them could make a layer that differs between sites, and so tell the sites' answers apart in a sum.
    """
    refused = [name for name in names if not any(fnmatch.fnmatchcase(name, pattern) for pattern in policy.local)]
    if refused:
        raise Refused(
            Reason.TASK,
            f"task.local has {', '.join(refused[:3])}, and the policy's `local` does not. Leave task.local empty, or "
            "agree on `local` with the site.",
        )


def check_noise(policy: SitePolicy, noise: SharedNoise | None) -> None:
    """Refuse noise that is too little once the sites that may help the server take their part of it off."""
    if noise is not None and noise.lost < policy.colluders:
        raise Refused(Reason.TASK, f"noise.lost is {noise.lost}; the policy asks for {policy.colluders}.")


LARGEST_EPSILON = 10.0
"""With a larger budget noise hides next to nothing, and an answer counts as one without."""


def is_private(privacy: PrivacyConfig | None) -> bool:
    """Whether a site's noise is enough to hide a patient whatever the weights that come bring out."""
    return privacy is not None and privacy.epsilon <= LARGEST_EPSILON


def check_exact(policy: SitePolicy, kind: str, privacy: PrivacyConfig | None) -> None:
    """Refuse an answer without noise, if the policy does not say in so many words that this kind has none."""
    if not is_private(privacy) and kind not in policy.exact:
        raise Refused(
            Reason.NOISE,
            f"This site has no budget (`epsilon`, up to {LARGEST_EPSILON:g}), and `exact` in its policy does not name "
            f"{kind}. Set `epsilon`, with which answers have noise; or write `exact: [train, evaluate, query]`; then "
            "masking alone protects patients, and sums tell whatever the coordinator's weights bring out.",
        )


def check_examples(policy: SitePolicy, count: float) -> None:
    """Refuse an answer with too few patients behind it."""
    if not count >= policy.min_examples:
        raise Refused(Reason.EXAMPLES, f"Fewer than {policy.min_examples} patients.")
