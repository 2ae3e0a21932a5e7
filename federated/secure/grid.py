"""The server's side of secure aggregation under Flower: a grid around a grid.

A strategy sends its messages as ever; what it gets back is one reply with the weighted mean of the answers, as if it
had averaged them itself, and an error for each site that dropped out. Single answers are never seen here. `Exchange`
holds the messages of one secure sum: who was asked, who answered, and who dropped out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TypeVar

import numpy as np
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp.grid import Grid
from flwr.supercore.run import Run

from distlfm.errors import UsageError
from distlfm.federated.audit import AuditLog
from distlfm.federated.refused import Reason, Refused
from distlfm.federated.secure.gatherer import Gatherer, SumFailed
from distlfm.federated.secure.member import votes_in
from distlfm.federated.secure.messages import Advert, Boxes, Call, Consent, Delivery, Fields, Reveal, SumMessage
from distlfm.federated.secure.mod import BODY, CONSENT, KEYS, MASK, RECORD, SHARES, STAGE, UNMASK, VECTOR
from distlfm.federated.secure.records import bits_of, fits, mean_records, request_digest
from distlfm.federated.secure.ring import Words, decode

VOTES = "votes"
"""The record of a mean that counts the votes for and against the model that was measured."""

LOST = "no answer in time"
TWICE = "another node has the same name"
STRANGER = "keys in the name of a site that it is not"
OTHER_FORM = "an answer of another form than most sites'"
ELSEWHERE = "the sum failed"

Kind = TypeVar("Kind", bound=SumMessage)
Answer = TypeVar("Answer")


@dataclass
class SumReport:
    """How a secure sum went. dropped: reason by node. seconds: by stage. failure: why there was no sum, or empty.

    sent, received: bytes of arrays and protocol messages, seen from the server. sha256: of the mean, if there is one.
    votes: on the model that was measured, by site.
    """

    purpose: str
    cohort: tuple[str, ...] = ()
    survivors: tuple[str, ...] = ()
    dropped: dict[int, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failure: str = ""
    sent: int = 0
    received: int = 0
    sha256: str = ""
    votes: list[str] = field(default_factory=list)


class Patience:
    """How long to wait in each stage of a sum, so that the sum ends in time. seconds: for all of it; None for ever.

    Stages without work wait `stage` seconds at most. Of what is given for the sum a quarter may go by in each of the
    first two, and a quarter is left for the two that end it: one lost answer does not use up the time of the others.
    """

    def __init__(self, seconds: float | None, stage: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._stage, self._clock = seconds, stage, clock
        self._begun = clock()

    def of(self, stage: str) -> float | None:
        """Seconds that a stage may take which begins now."""
        if self._seconds is None:
            return None if stage == MASK else self._stage
        left, quarter = self._seconds - (self._clock() - self._begun), self._seconds / 4
        if stage == MASK:
            return max(0.0, left - min(2 * self._stage, quarter))
        share = {CONSENT: left / 2, UNMASK: left}.get(stage, quarter)
        return max(0.0, min(self._stage, share, left))


@dataclass(frozen=True)
class Exchange:
    """The nodes of one sum. asked: the strategy's own message by node. nodes: node by name of site, once known.

    names: site by node, of nodes whose key the link has enrolled; such a node speaks for no other site.
    """

    inner: Grid
    asked: Mapping[int, Message]
    report: SumReport
    patience: Patience
    names: Mapping[int, str]
    nodes: dict[str, int] = field(default_factory=dict)

    def call(self, sent: Call) -> dict[int, Advert]:
        """Ask every node for keys."""
        replies = self._send(KEYS, {node: self._content(KEYS, sent) for node in self.asked})
        return self._read(replies, Advert)

    def introduce(self, adverts: Mapping[int, Advert], known: Callable[[Advert], bool]) -> dict[str, Advert]:
        """Learn which node is which site. known: whether an advert is the site's own.

        Nobody gets into a site's place with a forged advert, nor with one that the site has sent before.
        """
        for node, advert in adverts.items():
            if self.names.get(node, advert.site) != advert.site or not known(advert):
                self.report.dropped[node] = STRANGER
            elif advert.site in self.nodes:
                self.report.dropped[node] = TWICE
            else:
                self.nodes[advert.site] = node
        return {site: adverts[node] for site, node in self.nodes.items()}

    def ask(self, stage: str, sent: Mapping[str, SumMessage], kind: type[Kind]) -> dict[str, Kind]:
        """Send each site what is said to it; the answers that came and can be read, by site."""
        contents = {self.nodes[site]: self._content(stage, one) for site, one in sent.items()}
        return self._by_site(self._read(self._send(stage, contents), kind))

    def ask_vectors(self, deliveries: Mapping[str, Delivery], request: RecordDict) -> dict[str, tuple[Fields, Words]]:
        """Send the request itself, for which the sites work; their masked vectors [N] and what form these have."""
        contents = {
            self.nodes[site]: RecordDict({**request, **self._content(MASK, sent)}) for site, sent in deliveries.items()
        }
        replies = self._send(MASK, contents)
        vectors = {}
        for node, form in self._read(replies, Fields).items():
            vector = _vector(replies[node])
            if vector is None or not fits(request, form, len(vector)):
                self.report.dropped[node] = Reason.MALFORMED.value
            else:
                vectors[node] = (form, vector)
        return self._by_site(vectors)

    def replies(self, mean: RecordDict | None) -> list[Message]:
        """What the strategy gets: the mean as the reply of one surviving node, and an error for all who dropped out."""
        survivors = [self.nodes[site] for site in self.report.survivors] if mean is not None else []
        answers = [Message(mean, reply_to=self.asked[survivors[0]])] if mean is not None else []
        for node, message in self.asked.items():
            if node not in survivors:
                reason = self.report.dropped.get(node, self.report.failure or ELSEWHERE)
                answers.append(Message(Error(code=ErrorCode.NODE_UNAVAILABLE, reason=reason), reply_to=message))
        return answers

    def _content(self, stage: str, sent: SumMessage) -> RecordDict:
        return RecordDict({RECORD: ConfigRecord({STAGE: stage, BODY: sent.to_bytes()})})

    def _send(self, stage: str, contents: Mapping[int, RecordDict]) -> dict[int, Message]:
        """Replies with content, by node; the others have dropped out."""
        messages = []
        for node, content in contents.items():
            asked = self.asked[node].metadata
            messages.append(Message(content, node, self.report.purpose, ttl=asked.ttl, group_id=asked.group_id))
        start = time.perf_counter()
        replies = self.inner.send_and_receive(messages, timeout=self.patience.of(stage))
        arrived = {reply.metadata.src_node_id: reply for reply in replies}
        self.report.seconds[stage] = time.perf_counter() - start
        self.report.sent += sum(_size(content) for content in contents.values())
        self.report.received += sum(_size(reply.content) for reply in arrived.values() if reply.has_content())
        for node in contents:
            if node not in arrived:
                self.report.dropped[node] = LOST
            elif arrived[node].has_error():
                self.report.dropped[node] = str(arrived[node].error.reason)
        return {node: reply for node, reply in arrived.items() if node in contents and reply.has_content()}

    def _read(self, replies: Mapping[int, Message], kind: type[Kind]) -> dict[int, Kind]:
        found = {}
        for node, reply in replies.items():
            record = reply.content.config_records.get(RECORD)
            body = record.get(BODY) if record is not None else None
            try:
                found[node] = kind.from_bytes(body if isinstance(body, bytes) else b"")
            except Refused as refused:
                self.report.dropped[node] = refused.reason.value
        return found

    def _by_site(self, answers: Mapping[int, Answer]) -> dict[str, Answer]:
        return {site: answers[node] for site, node in self.nodes.items() if node in answers}


def _vector(reply: Message) -> Words | None:
    record = reply.content.array_records.get(VECTOR)
    if record is None or VECTOR not in record:
        return None
    try:
        vector = record[VECTOR].numpy()
    except Exception:  # a stranger's bytes: numpy has many errors for what is no array, want of memory among them
        return None
    return vector if vector.dtype == np.uint64 and vector.ndim == 1 else None


def _size(content: RecordDict) -> int:
    arrays = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    configs = [value for record in content.config_records.values() for value in record.values()]
    return arrays + sum(len(value) for value in configs if isinstance(value, (bytes, str)))


STAGE_SECONDS = 120.0
"""So long the server waits for answers that need no work at the site."""


class SecureGrid(Grid):
    """Runs each `send_and_receive` as one secure sum over the nodes that the messages go to.

    min_sites: fewest sites at the start and at the end. peers: pinned keys of the sites; with them a stranger is left
    out at the start, without them the sites refuse it. All stages together take the strategy's own timeout at most.
    """

    def __init__(
        self,
        inner: Grid,
        *,
        min_sites: int = 3,
        peers: Mapping[str, str] | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        self._inner = inner
        self._min_sites, self._peers, self._audit = min_sites, peers, audit
        self._ahead: dict[int, Advert] = {}
        self.reports: list[SumReport] = []

    def set_run(self, run: Run) -> None:
        self._inner.set_run(run)

    @property
    def run(self) -> Run:
        return self._inner.run

    @property
    def expected(self) -> int:
        """Number of sites that are pinned; 0 where that is not known."""
        return len(self._peers or ())

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return self._inner.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        return self._inner.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        return self._inner.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Refused: a secure sum is an exchange, not a message."""
        del messages
        raise UsageError("Messages cannot be pushed one by one under secure aggregation.", "Use send_and_receive.")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Refused, as pushing is."""
        del message_ids
        raise UsageError("Messages cannot be pulled one by one under secure aggregation.", "Use send_and_receive.")

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """One reply with the mean and `num-sites`, and one error reply per site that is not in it."""
        asked = {message.metadata.dst_node_id: message for message in messages}
        if not asked:
            return []
        types = {message.metadata.message_type for message in asked.values()}
        requests = {request_digest(message.content) for message in asked.values()}
        first = next(iter(asked.values()))
        if len(types) > 1 or len(requests) > 1 or RECORD in first.content:
            raise UsageError(
                "A secure sum asks all sites the same.", f"Send one content without a record {RECORD!r} to all of them."
            )
        report = SumReport(first.metadata.message_type)
        self.reports.append(report)
        names = {node.node_id: node.name for node in self._inner.get_nodes() if node.name}
        exchange = Exchange(self._inner, asked, report, Patience(timeout, STAGE_SECONDS), names)
        gatherer = Gatherer(str(self.run.run_id), report.purpose, requests.pop(), self._min_sites)
        try:
            mean = self._sum(exchange, gatherer, first.content)
            report.sha256 = request_digest(mean)
        except SumFailed as failed:
            report.failure = failed.cause
            self._ahead.clear()
            mean = None
        self._log(report, gatherer.request, names | {node: site for site, node in exchange.nodes.items()})
        return exchange.replies(mean)

    def _sum(self, exchange: Exchange, gatherer: Gatherer, request: RecordDict) -> RecordDict:
        roster = gatherer.enrol(self._adverts(exchange, gatherer), self._peers)
        exchange.report.cohort = roster.sites
        deliveries = gatherer.deliver(exchange.ask(SHARES, dict.fromkeys(roster.sites, roster), Boxes))
        masked = exchange.ask_vectors(deliveries, request)
        if not masked:
            raise SumFailed("No site sent a masked vector.")
        # Whoever has another form than the most common one has dropped out.
        fields = Counter(form for form, _ in masked.values()).most_common(1)[0][0]
        vectors = {site: vector for site, (form, vector) in masked.items() if form == fields}
        exchange.report.dropped |= {exchange.nodes[site]: OTHER_FORM for site in set(masked) - set(vectors)}
        survivors = gatherer.gather(vectors)
        exchange.report.survivors = survivors.sites
        consents = gatherer.agree(exchange.ask(CONSENT, dict.fromkeys(survivors.sites, survivors), Consent))
        reveals = exchange.ask(UNMASK, dict.fromkeys(consents.signatures, consents), Reveal)
        self._ahead = {exchange.nodes[site]: sent.ahead for site, sent in reveals.items() if sent.ahead is not None}
        votes = {site: ballot.vote for site, ballot in consents.ballots.items()}
        if self._peers is not None:
            votes = votes_in(consents, self._peers)
        exchange.report.votes = [f"{site} {vote}" for site, vote in votes.items()]
        total = decode(gatherer.unmask(reveals), bits_of(fields))
        if not total[0] > 0:
            raise SumFailed("The summed weight is not positive.")
        mean = mean_records(request, fields, total, len(survivors.sites))
        if votes:
            tally = Counter(votes.values())
            mean[VOTES] = ConfigRecord({"for": tally["for"], "against": tally["against"]})
        return mean

    def _adverts(self, exchange: Exchange, gatherer: Gatherer) -> dict[str, Advert]:
        """Keys of all sites: those that came with the last sum if every site gave some, else fresh ones."""
        ahead, self._ahead = self._ahead, {}
        if set(exchange.asked) <= set(ahead):
            adverts = {node: ahead[node] for node in exchange.asked}
        else:
            adverts = exchange.call(Call(run=gatherer.run, purpose=gatherer.purpose))
        return exchange.introduce(adverts, lambda advert: gatherer.knows(advert, self._peers))

    def _log(self, report: SumReport, request: str, names: Mapping[int, str]) -> None:
        """names: of the sites, by node; a node that nobody knows has its number."""
        if self._audit is not None:
            dropped = [f"{names.get(node, node)}: {reason}" for node, reason in sorted(report.dropped.items())]
            facts = asdict(report) | {"request": request, "dropped": dropped}
            del facts["seconds"]
            self._audit.append("sum", str(self.run.run_id), **facts)
