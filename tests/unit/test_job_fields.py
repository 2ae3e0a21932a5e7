"""What the docstring of a job explains is there."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from distlfm.cluster.blocks.job import Job
from distlfm.fleets.fit_job import FitJob
from distlfm.verbs.generate import GenerateJob


@pytest.mark.parametrize("job", [FitJob, GenerateJob])
def test_the_docstring_of_a_job_explains_fields_that_it_has(job: type[Job]) -> None:
    explained = re.findall(r"^ *(\w+): ", job.__doc__ or "", re.MULTILINE)
    assert {*explained} <= {one.name for one in fields(job)}  # type: ignore[arg-type]
