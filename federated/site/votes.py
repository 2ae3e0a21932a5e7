"""A site's vote on a round's model: is it better than the one before for the site's own patients that choose?

One site's figures can be made up, and the mean of all with them; of votes each site has one. A vote tells one bit about
the patients that choose. The losses by which a site compares stay in its folder, and only those of opened sums do.
Every site sees the votes of all when a sum is opened, and a model that lost is not taken over when it is handed out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from distlfm.federated.refused import Reason, Refused
from distlfm.federated.secure.messages import Vote
from distlfm.federated.setup.homes import replace_secret
from distlfm.store.files import storing

if TYPE_CHECKING:
    from distlfm.federated.codec import Vector

VOTES = "votes.json"
KEPT = 4
"""Losses of a run that are remembered."""
AGAINST = "against"
"""In a request's config: the digest of the model that a vote compares with."""


@dataclass(frozen=True)
class Known:
    """What a site knows of the models of a run, by their digests.

    losses: of the last ones, for its own patients that choose. last: the one that was measured last. shown: all that
    were measured, or compared with. lost: those that more sites voted against than for.
    """

    run: str
    losses: Mapping[str, float]
    last: str = ""
    shown: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    @staticmethod
    def read(folder: Path, run: str) -> Known:
        """Read what is known of a run; nothing of another one."""
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            content = json.loads((folder / VOTES).read_text(encoding="utf-8"))
            if content["run"] == run:
                losses = {str(name): float(loss) for name, loss in content["losses"].items()}
                shown, lost = (tuple(map(str, content.get(name, ()))) for name in ("shown", "lost"))
                return Known(run, losses, str(content.get("last", "")), shown, lost)
        return Known(run, {})

    def write(self, folder: Path) -> None:
        """Keep it in a folder, for its owner's eyes."""
        with storing(VOTES, folder):
            replace_secret(folder / VOTES, json.dumps(asdict(self)).encode())


def model_digest(vector: Vector) -> str:
    """The name of a model in votes."""
    return hashlib.sha256(vector.tobytes()).hexdigest()


def vote_on(
    folder: Path, draft: Path | None, run: str, vector: Vector, loss: float | None, against: str
) -> Vote | None:
    """Remember the loss of a model and return the vote on it; None where the other model is not known here.

    folder: with what is known of opened sums. draft: where the new is written, and becomes known with the sum.
    loss: None at a site that abstains.
    """
    known, name = Known.read(folder, run), model_digest(vector)
    if draft is not None:
        losses = dict([*((one, value) for one, value in known.losses.items() if one != name)][-(KEPT - 1) :])
        # The model that is compared with is remembered, however long it has been the best.
        losses |= {against: known.losses[against]} if against in known.losses else {}
        losses |= {} if loss is None else {name: loss}
        shown = dict.fromkeys([*known.shown, name, *([against] if against else [])])
        replace(known, losses=losses, last=name, shown=tuple(shown)).write(draft)
    if loss is None or against not in known.losses:
        return None
    return "for" if loss < known.losses[against] else "against"


def settle(folder: Path, run: str, votes: Mapping[str, Vote]) -> None:
    """Note how the sites voted on the model that was measured last. votes: by site, as their own sites signed them."""
    known = Known.read(folder, run)
    cast = list(votes.values())
    if cast and known.last:
        lost = [name for name in known.lost if name != known.last]
        lost += [known.last] if cast.count("against") > cast.count("for") else []
        replace(known, lost=tuple(lost)).write(folder)


def check_handed(folder: Path, run: str, vector: Vector) -> bool:
    """Refuse a run's model that its sites voted against. Return whether it was measured here at all.

    A site that was away when it was measured cannot tell, and a run without figures has no votes.
    """
    known, name = Known.read(folder, run), model_digest(vector)
    if name in known.lost:
        raise Refused(
            Reason.TASK,
            "The model that was handed out lost the vote of the sites: the line `unmask` of this log has the votes. It "
            "is not taken over. Ask the coordinator for the model that the run has kept.",
        )
    return name in known.shown
