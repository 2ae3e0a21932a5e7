"""The site's side of secure aggregation under Flower: `ClientApp(mods=[secure_mod])`.

The site's policy is asked first; what is outside it, or outside secure aggregation, is refused. The app is called for
its answer in one stage only, and what leaves is the masked answer. Whatever goes wrong, the server gets a reason
from a fixed list and no more: an exception's own text may hold values, so not even the site's log gets it.
"""

from __future__ import annotations

import hashlib
import logging
import math
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode

from distlfm.cluster.blocks.job import failure_of
from distlfm.errors import DistlfmError, StorageError
from distlfm.federated.audit import AuditLog, Fact, head_of, holds
from distlfm.federated.refused import Reason, Refused
from distlfm.federated.secure import member
from distlfm.federated.secure.cover import covered
from distlfm.federated.secure.epochs import History
from distlfm.federated.secure.keys import public_hex
from distlfm.federated.secure.member import MemberState, Stage
from distlfm.federated.secure.memory import Drafts, Memory, Usage
from distlfm.federated.secure.messages import (
    Call,
    Consents,
    Delivery,
    Fields,
    Head,
    Roster,
    SumMessage,
    Survivors,
    Vote,
)
from distlfm.federated.secure.noise import SumNoise
from distlfm.federated.secure.records import bits_of, flatten, request_digest, within
from distlfm.federated.secure.ring import encode
from distlfm.federated.setup.identity import load_signing_key
from distlfm.federated.site.ledger import BudgetSpent
from distlfm.federated.site.policy import SitePolicy, check_examples, check_message, check_package, policy_of
from distlfm.federated.site.votes import VOTES, settle
from distlfm.federated.site.worktime import Runs, WorkTime, working
from distlfm.store.files import is_full

RECORD, STAGE, BODY, VECTOR = "secagg", "stage", "body", "vector"
KEYS, SHARES, MASK, CONSENT, UNMASK = "keys", "shares", "mask", "consent", "unmask"
WEIGHT, VOTE = "num-examples", "vote"
SECONDS = "seconds"
"""In a request's config: how long its sender waits for the work."""
NOISE, PART, LOST = "noise", "part ", "lost"
"""The record of an app's reply that says which noise is added, and what is in it."""


def secure_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Answer one message of a secure sum, or refuse it."""
    audit: AuditLog | None = None
    run, facts = str(context.run_id), {"purpose": message.metadata.message_type, "stage": stage_of(message)}
    try:
        policy = policy_of(context)
        audit = AuditLog(policy.audit)
        memory = Memory(policy.state, audit, run)
        site = Answering(policy, load_signing_key(policy.signing_key), memory, audit, run)
        return Message(site.answer(message, context, call_next), reply_to=message)
    except Refused as refused:
        reason, facts = refused.reason, {**facts, "reason": refused.reason.name, "detail": refused.detail}
    except BudgetSpent:
        reason, facts = Reason.BUDGET, {**facts, "reason": Reason.BUDGET.name}
    except Exception as error:  # whatever it is, its text stays here
        failure = failure_of(error)
        reason = Reason.DISK if is_full(error) else Reason.FAILED
        facts = {**facts, "reason": reason.name, "kind": failure.kind, "at": failure.where}
    _note(audit, run, facts)
    return Message(Error(code=ErrorCode.MOD_FAILED_PRECONDITION, reason=reason.value), reply_to=message)


def _note(audit: AuditLog | None, run: str, facts: dict[str, str]) -> None:
    """Log a refusal; where that fails, the server still learns nothing but the reason."""
    try:
        if audit is not None:
            audit.append("refused", run, **facts)
            return
    except StorageError as error:
        facts = {**facts, "log": error.cause}
    logging.getLogger(__name__).error("A message was refused: %s", facts)


def stage_of(message: Message) -> str:
    """The stage of a secure sum that a message is of; empty if it is of none."""
    record = message.content.config_records.get(RECORD) if message.has_content() else None
    stage = record.get(STAGE) if record is not None else None
    return stage if stage in (KEYS, SHARES, MASK, CONSENT, UNMASK) else ""


def with_noise(reply: RecordDict, noise: SumNoise | None) -> RecordDict:
    """Say in an app's reply which noise its numbers get in the sum."""
    if noise is not None:
        lost = {} if noise.lost is None else {LOST: noise.lost}
        reply[NOISE] = ConfigRecord({**{f"{PART}{name}": one for name, one in noise.deviations.items()}, **lost})
    return reply


def noise_of(reply: Message) -> SumNoise | None:
    """Return the noise that an app's reply asks for; the record itself never leaves the site."""
    record = reply.content.config_records.get(NOISE)
    if record is None:
        return None
    lost = record.get(LOST)
    deviations = {name.removeprefix(PART): float(str(one)) for name, one in record.items() if name.startswith(PART)}
    return SumNoise(deviations, None if lost is None else int(str(lost)))


@dataclass(frozen=True)
class Answering:
    """A site while it answers one message of a run."""

    policy: SitePolicy
    key: Ed25519PrivateKey
    memory: Memory
    audit: AuditLog
    run: str

    def answer(self, message: Message, context: Context, call_next: ClientAppCallable) -> RecordDict:
        """What to send back; raises Refused."""
        purpose, stage = message.metadata.message_type, stage_of(message)
        check_package(self.policy)
        check_message(self.policy, purpose)
        if not stage:
            raise Refused(Reason.UNMASKED, "The message has no stage of a secure sum.")
        body = message.content.config_records[RECORD].get(BODY)
        request = RecordDict({name: record for name, record in message.content.items() if name != RECORD})
        if not isinstance(body, bytes) or (len(request) and stage != MASK):
            raise Refused(Reason.MALFORMED, f"The records of stage {stage}.")
        if stage == KEYS:
            return self._keys(Call.from_bytes(body), purpose)
        if stage == SHARES:
            return self._shares(Roster.from_bytes(body), purpose)
        if stage == MASK:
            state = self._begin(Delivery.from_bytes(body), purpose, request)
            message.content = request
            return self._masked(state, request, self._work(state, message, context, call_next))
        if stage == CONSENT:
            return self._consent(Survivors.from_bytes(body), purpose)
        return self._unmask(Consents.from_bytes(body), purpose, context.node_config.get("site"))

    def _work(self, state: MemberState, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Let the app work, as long as the round waits for it, the run goes on, and the policy allows it."""
        asked = next((one.get(SECONDS) for one in message.content.config_records.values() if SECONDS in one), None)
        limit = self.policy.task.seconds
        seconds = min(limit, asked) if isinstance(asked, float) and asked > 0 else limit
        runs = Runs(self.policy.state)

        def why_not() -> str:
            if runs.has_ended(self.run):
                return "The run has ended."
            return "" if self.memory.state(self.run) == state else "Another sum of this run was begun meanwhile."

        drafts = self._drafts.collect(self.run, state.cohort.session.hex())
        with drafts, runs.working(self.run), working(WorkTime(seconds, why_not)):
            try:
                return call_next(message, context)
            except Exception as error:
                # A defect may be one that patients' records bring out.
                told = error.told if isinstance(error, Refused) else not isinstance(error, DistlfmError | OSError)
                if told:
                    with self.memory.locked():
                        self.memory.refuse()
                raise

    def _keys(self, call: Call, purpose: str) -> RecordDict:
        if (call.run, call.purpose) != (self.run, purpose):
            raise Refused(Reason.STAGE, "A call for another run or purpose.")
        with self.memory.locked():
            self.memory.forget_old()
            state = member.advertise(self.policy.rules(), self.key, self.run, self._seen)
            self.memory.keep(self.run, state)
            return self._leaving(KEYS, purpose, state.advert)

    def _shares(self, roster: Roster, purpose: str) -> RecordDict:
        if roster.purpose != purpose:
            raise Refused(Reason.STAGE, "A roster for another purpose.")
        with self.memory.locked():
            state, boxes = member.share(self.policy.rules(), self.key, self.memory.state(self.run), roster)
            self._check_log(roster)
            self._needs_cover(frozenset(roster.sites), purpose)
            self.memory.keep(self.run, state)
            return self._leaving(SHARES, purpose, boxes, cohort=list(roster.sites), request=roster.request)

    def _begin(self, delivery: Delivery, purpose: str, request: RecordDict) -> MemberState:
        """Take the step before the work, so that no second message finds it open."""
        with self.memory.locked():
            state = member.receive(self.policy.rules(), self._state(purpose), delivery)
            if request_digest(request) != state.cohort.request:
                raise Refused(Reason.REQUEST, "Its digest is not the one in the roster.")
            state = state.model_copy(update={"covered": self._needs_cover(state.masking, purpose)})
            self.memory.begin(self._limit, train=purpose.partition(".")[0] == "train")
            self.memory.keep(self.run, state)
        return state

    def _masked(self, state: MemberState, request: RecordDict, reply: Message) -> RecordDict:
        if reply.has_error():
            raise Refused(Reason.FAILED, "The app answered with an error.")
        # With noise, the app has clipped before adding it; a norm that includes the noise is another one.
        clip = self.policy.clip if self.policy.noise_multiplier == 0 else None
        check_examples(self.policy, _patients(reply.content))
        noise = noise_of(reply)
        noises = [] if noise is None else [noise]
        # Of noise that the sites bring together, each patient's part counts alike.
        weigh = self.policy.weight if noise is None or noise.lost is None else self.policy.held
        parts, values = flatten(request, reply.content, WEIGHT, clip, weigh)
        if state.covered:
            # The same at all sites of one federation, or nearly: what a site counts for must not tell who it is.
            values, cover = covered(
                parts,
                values,
                weight=self.policy.weight(self.policy.min_examples),
                bound=self.policy.figure_bound,
                clip=self.policy.clip,
                noise=self.policy.cover_noise,
            )
            noises.append(cover)
        fields = Fields(session=state.cohort.session.hex(), parts=parts)
        count = len(state.masking)
        values, changed = within(parts, values, count, self.policy.figure_bound)
        if changed:
            self.audit.append("held back", self.run, purpose=state.cohort.purpose, parts=changed)
        words = encode(values, bits_of(fields), count)
        for one in noises:
            words += one.words(parts, count)
        after, hidden = member.masked(self.policy.rules(), state, words)
        if noise is not None and noise.lost is not None:
            after = after.model_copy(update={"spare": max(0, noise.lost - self.policy.colluders)})
        vote = _vote_in(reply.content)
        with self.memory.locked():
            if self.memory.state(self.run) != state:
                raise Refused(Reason.STAGE, "Another sum of this run was begun meanwhile.")
            if vote is not None and self.memory.use_vote(self.policy.votes_a_day):
                after = after.model_copy(update={"vote": vote})
            self.memory.keep(self.run, after)
            vector = Array(hidden)
            content = self._leaving(
                MASK,
                state.cohort.purpose,
                fields,
                vector,
                request=state.cohort.request,
                sites=sorted(state.masking),
                covered=state.covered,
            )
        content[VECTOR] = ArrayRecord({VECTOR: vector})
        return content

    def _consent(self, survivors: Survivors, purpose: str) -> RecordDict:
        with self.memory.locked():
            state, sent = member.consent(self.policy.rules(), self.key, self._state(purpose), survivors)
            # From here on the sum may be opened, whether or not this site is asked to help.
            history = self._history
            if not state.covered and not history.is_open(state.survivors, self.policy.min_difference):
                raise Refused(
                    Reason.ROSTER, _like(state.survivors, history, "A site was lost after the others masked.")
                )
            noted = self.memory.answer(history, state.survivors, covered=state.covered).noted(covered=state.covered)
            self.memory.keep(self.run, state)
            head = member.signed_head(self.policy.rules(), self.key, *head_of(self.policy.audit))
            sent = sent.model_copy(update={"head": head})
            told: dict[str, Fact] = {"survivors": sorted(state.survivors), "vote": state.vote or "none", **noted}
            return self._leaving(CONSENT, purpose, sent, None, **told)

    def _unmask(self, consents: Consents, purpose: str, site: object) -> RecordDict:
        """The shares, and keys for the next sum of the run. The state is gone before they leave.

        Only now, with enough signatures under the list of sites, is anything of the round kept in the site's folder.
        """
        with self.memory.locked():
            state = self._state(purpose)
            sent = member.reveal(self.policy.rules(), self.key, state, consents)
            votes = member.votes_in(consents, self.policy.peers)
            self.memory.saw(consents.heads, self.policy.rules().peers)
            fresh = member.advertise(self.policy.rules(), self.key, self.run, self._seen)
            self.memory.keep(self.run, fresh)
            kept = []
            if isinstance(site, str):
                models = Path(site) / "model"
                kept = self._drafts.keep(self.run, consents.session, models)
                if VOTES in kept:
                    settle(models, self.run, votes)
            content = sent.model_copy(update={"ahead": fresh.advert})
            names = sorted(sent.seeds), sorted(sent.keys)
            cast = [f"{name} {vote}" for name, vote in votes.items()]
            return self._leaving(UNMASK, purpose, content, seeds=names[0], keys=names[1], kept=kept, votes=cast)

    def _state(self, purpose: str) -> MemberState:
        state = self.memory.state(self.run)
        if state.stage is Stage.ADVERTISED or state.cohort.purpose != purpose:
            raise Refused(Reason.STAGE, "No sum for this purpose is under way.")
        return state

    @property
    def _seen(self) -> dict[str, Head]:
        return self.memory.seen(self.policy.rules().peers)

    def _check_log(self, roster: Roster) -> None:
        """Refuse to go on with an audit log that lacks a line that another site has seen of it."""
        seen = member.seen_of(roster, self.policy.rules(), public_hex(self.key))
        if seen is not None and not holds(self.policy.audit, seen.number, seen.digest):
            raise Refused(
                Reason.ROLLBACK,
                f"{self.policy.audit} lacks line {seen.number} ({seen.digest[:12]}…), which another site has seen: it "
                "was brought back from an old copy, and so perhaps was the ledger. Bring back the log and the ledger "
                "of today. If they are lost, nobody knows what was spent: whoever is responsible for the patients' "
                "data decides on a new budget, and the site joins anew with new keys, which the others pin.",
            )

    @property
    def _history(self) -> History:
        return self.memory.history(self.policy.rules().everybody)

    def _needs_cover(self, sites: frozenset[str], purpose: str) -> bool:
        """Whether a sum over these sites has to have covering noise; refused if there is none for it."""
        history = self._history
        if history.is_open(sites, self.policy.min_difference):
            return False
        if purpose == "train" and self.policy.clip is None:
            raise Refused(Reason.ROSTER, _like(sites, history, "Without a clip no noise covers an update."))
        if history.covered >= self.policy.cover_answers:
            why = f"This epoch's {self.policy.cover_answers} answers with covering noise are used up."
            raise Refused(Reason.ROSTER, _like(sites, history, why))
        return True

    @property
    def _drafts(self) -> Drafts:
        return Drafts(self.policy.state)

    @property
    def _limit(self) -> Usage:
        of_policy = {name: getattr(self.policy, f"{name}_a_day") for name in Usage.model_fields if name != "day"}
        return Usage(**of_policy)

    def _leaving(
        self, stage: str, purpose: str, sent: SumMessage, vector: Array | None = None, **facts: Fact
    ) -> RecordDict:
        """Count and log what is about to leave."""
        body = sent.to_bytes()
        hidden = b"" if vector is None else vector.data
        size = len(body) + len(hidden)
        self.memory.send(self._limit, size)
        digest = hashlib.sha256(body + hidden).hexdigest()
        self.audit.append(stage, self.run, purpose=purpose, bytes=size, sha256=digest, **facts)
        return RecordDict({RECORD: ConfigRecord({STAGE: stage, BODY: body})})


def _like(sites: frozenset[str], history: History, why: str) -> str:
    """Say why a sum over these sites is refused, and what to do."""
    return (
        f"A sum over {', '.join(sorted(sites))} and those that were answered differ by too few sites; this epoch's are "
        f"{', '.join(history.pinned)}. {why} Wait until all of them are there, or until more sites have changed; with "
        "`clip` and without `train` in fixed_cohort a round goes on with noise."
    )


def _patients(reply: RecordDict) -> float:
    """How many patients an answer is of; not a number if it does not say."""
    for record in reply.metric_records.values():
        value = record.get(WEIGHT)
        if isinstance(value, int | float):
            return float(value)
    return math.nan


def _vote_in(reply: RecordDict) -> Vote | None:
    """The vote that the app has put beside its answer; it travels with the site's consent."""
    vote = reply.config_records[VOTE].get(VOTE) if VOTE in reply.config_records else None
    return "for" if vote == "for" else "against" if vote == "against" else None
