"""Questions: a clinician's about one patient, which never leave the site; and the federation's, as secure sums."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from distlfm.errors import UsageError
from distlfm.federated.audit import AuditLog
from distlfm.federated.homes import SiteHome
from distlfm.federated.run import RunResult, run_programme
from distlfm.runtime.reporting import Reporter, Silent

if TYPE_CHECKING:
    from distlfm.federated.control import Connection
    from distlfm.federated.settings import ProgrammeConfig
    from distlfm.pipeline.query import QueryRun


def ask_site(folder: Path, data: str, overrides: Sequence[str] = (), reporter: Reporter | None = None) -> QueryRun:
    """Ask the site's own model about patients of the site. Nothing leaves: no process of Flower takes part.

    overrides: as for `distlfm query`. The site's log tells that it was asked, and of how many; not about whom.
    """
    from distlfm.federated.site_work import own_checkpoint
    from distlfm.pipeline.query import query

    home = SiteHome(folder)
    home.config()
    checkpoint = own_checkpoint(folder)
    if not checkpoint.exists():
        raise UsageError(f"The site has no operator: there is no {checkpoint}.", "Copy the federation's there.")
    answer = query(checkpoint, data, overrides, reporter or Silent())
    AuditLog(home.audit).append("local query", "", answers=len(answer.rows), left="nothing")
    return answer


def ask_federation(
    programme: ProgrammeConfig, question: str, name: str, connection: Connection, reporter: Reporter | None = None
) -> RunResult:
    """Ask all sites together; what comes back are means over the federation's patients, and nothing by site.

    programme: the operator that is asked about, and how many sites must answer. name: the run whose model is meant.
    """
    asked = programme.model_copy(update={"kind": "query", "question": question})
    return run_programme(asked, name, connection, reporter)
