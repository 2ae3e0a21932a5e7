"""The server's side of secure aggregation under Flower: a grid around a grid.

A strategy sends its messages as ever; what it gets back is one reply with the weighted mean of the answers, as if it
had averaged them itself, and an error for each site that dropped out. Single answers are never seen here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp.grid import Grid
from flwr.supercore.run import Run

from distlfm.errors import UsageError
from distlfm.federated.audit import AuditLog
from distlfm.federated.secagg.gatherer import Gatherer, SumFailed
from distlfm.federated.secagg.messages import Advert, Boxes, Call, Consent, Fields, Reveal
from distlfm.federated.secagg.ring import Words, decode
from distlfm.federated.secure_exchange import OTHER_FORM, Exchange, Patience, SumReport
from distlfm.federated.secure_mod import CONSENT, RECORD, SHARES, UNMASK
from distlfm.federated.secure_records import bits_of, mean_records, request_digest

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
        """One reply with the mean and `num-sites`, and an error reply a site that is not in it."""
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
        fields, vectors = _of_one_form(masked)
        exchange.leave_out(set(masked) - set(vectors), OTHER_FORM)
        survivors = gatherer.gather(vectors)
        exchange.report.survivors = survivors.sites
        consents = gatherer.agree(exchange.ask(CONSENT, dict.fromkeys(survivors.sites, survivors), Consent))
        reveals = exchange.ask(UNMASK, dict.fromkeys(consents.signatures, consents), Reveal)
        self._ahead = {exchange.nodes[site]: said.ahead for site, said in reveals.items() if said.ahead is not None}
        total = decode(gatherer.unmask(reveals), bits_of(fields))
        if not total[0] > 0:
            raise SumFailed("The summed weight is not positive.")
        return mean_records(request, fields, total, len(survivors.sites))

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
            self._audit.append(
                "sum",
                str(self.run.run_id),
                purpose=report.purpose,
                request=request,
                cohort=list(report.cohort),
                survivors=list(report.survivors),
                dropped=[f"{names.get(node, node)}: {reason}" for node, reason in sorted(report.dropped.items())],
                failure=report.failure,
                sent=report.sent,
                received=report.received,
                sha256=report.sha256,
            )


def _of_one_form(masked: Mapping[str, tuple[Fields, Words]]) -> tuple[Fields, dict[str, Words]]:
    """The vectors that have the most common form; whoever has another one has dropped out."""
    common = Counter(fields for fields, _ in masked.values()).most_common(1)[0][0]
    return common, {site: vector for site, (fields, vector) in masked.items() if fields == common}
