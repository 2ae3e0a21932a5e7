"""A site's vote on a round's model: is it better than the one before for the site's own patients that choose?

One site's figures can be made up, and the mean of all with them; of votes each site has one. A vote tells one bit about
the patients that choose. The losses by which a site compares stay in its folder, and only those of opened sums do.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path

from distlfm.federated.codec import Vector
from distlfm.federated.secure.messages import Vote
from distlfm.federated.setup.homes import replace_secret
from distlfm.store.files import storing

VOTES = "votes.json"
KEPT = 4
"""Losses of a run that are remembered."""
AGAINST = "against"
"""In a request's config: the digest of the model that a vote compares with."""


def model_digest(vector: Vector) -> str:
    """The name of a model in votes."""
    return hashlib.sha256(vector.tobytes()).hexdigest()


def vote_on(folder: Path, draft: Path | None, run: str, vector: Vector, loss: float, against: str) -> Vote | None:
    """Remember the loss of a model and return the vote on it; None where the other model is not known here.

    folder: with the losses of opened sums. draft: where the new ones are written, and become known with the sum.
    """
    known = _losses(folder / VOTES, run)
    if draft is not None:
        kept = dict([*((name, one) for name, one in known.items() if name != model_digest(vector))][-(KEPT - 1) :])
        # The model that is compared with is remembered, however long it has been the best.
        kept |= {against: known[against]} if against in known else {}
        content = json.dumps({"run": run, "losses": {**kept, model_digest(vector): loss}})
        with storing(VOTES, draft):
            replace_secret(draft / VOTES, content.encode())
    if against not in known:
        return None
    return "for" if loss < known[against] else "against"


def _losses(path: Path, run: str) -> dict[str, float]:
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["run"] == run:
            return {str(name): float(loss) for name, loss in content["losses"].items()}
    return {}
