"""How a site says no: a reason from a fixed list, which others may see, and a detail that stays at home."""

from __future__ import annotations

from enum import StrEnum

from distlfm.errors import WorkError


class Reason(StrEnum):
    """Every reason for which a site refuses. The text is all that leaves the site."""

    UNMASKED = "a request outside secure aggregation"
    MESSAGE = "this kind of message is not allowed here"
    PACKAGE = "another version of the package is agreed on"
    COHORT = "too few sites, or sites that are not pinned here"
    COHORT_FIXED = "this question is answered by all sites together or not at all"
    KEY = "a key that its owner has not signed"
    THRESHOLD = "another threshold than the rule gives"
    STAGE = "a message that does not follow from the last one"
    SURVIVORS = "too few sites are left, or sites that were not in the sum"
    CONSENT = "the sites do not agree on who is in the sum"
    TASK = "a task outside of what this site allows"
    REQUEST = "the request is not the one that the sites agreed on"
    ROSTER = "sums over nearly the same sites were answered before"
    EXAMPLES = "too few examples"
    RANGE = "an answer of which there is no mean"
    NOISE = "answers without noise are not given here"
    QUERIES = "the questions of this day are used up"
    ROUNDS = "the rounds of this day are used up"
    BYTES = "the bytes of this day are used up"
    BUDGET = "the privacy budget is spent"
    ROLLBACK = "the site's log is older than what other sites saw of it"
    MALFORMED = "a message that cannot be read"
    DISK = "the disk of the site is full"
    TIME = "the work was stopped before its end"
    FAILED = "the work at the site failed"


class Refused(WorkError):
    """A site does not do what it was asked. `detail` is for the site's own log.

    told: whether this depends on patients' records, so that the refusal itself tells one bit about them.
    """

    def __init__(self, reason: Reason, detail: str = "", *, told: bool = False) -> None:
        super().__init__(f"Refused: {reason.value}.", detail)
        self.reason = reason
        self.detail = detail
        self.told = told
