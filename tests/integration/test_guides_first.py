"""Commands and programs of every second guide are run, in order; `test_guides_others.py` has the other ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.documents import GUIDES, check_blocks, named


@pytest.mark.slow
@pytest.mark.parametrize("document", GUIDES[::2], ids=named)
def test_commands_and_programs_of_a_guide_work_in_order(document: Path, tmp_path: Path) -> None:
    check_blocks(document, tmp_path)
