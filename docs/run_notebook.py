"""Run docs/notebook.ipynb and store what its cells show: python docs/run_notebook.py.

With --check nothing is written: the cells are run, and what is stored must be the same. Pictures are not compared, and
numbers may be a little off, as another machine rounds in another way. Cells are run as Jupyter runs them, in one
namespace, the last expression of a cell and its pictures shown; no kernel is needed.
"""

from __future__ import annotations

import argparse
import ast
import base64
import io
import json
import math
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt

NOTEBOOK = Path(__file__).with_name("notebook.ipynb")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
CLOSE, ROUNDED = 0.1, 2e-3
"""Relative and absolute difference below which two numbers say the same; tables have three decimals."""


def run_cell(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell, and return its outputs as a notebook stores them."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    shown = None
    written = io.StringIO()
    with redirect_stdout(written):
        exec(compile(tree, "cell", "exec"), names)  # noqa: S102 - the document's own cells
        if last is not None and not source.rstrip().endswith(";"):
            shown = eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307
    outputs: list[dict[str, Any]] = []
    if written.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": written.getvalue().splitlines(True)})
    pictures = [plt.figure(number) for number in plt.get_fignums()]
    if shown is not None and not pictures:
        data: dict[str, Any] = {"text/plain": repr(shown).splitlines(True)}
        if hasattr(shown, "_repr_html_") and (html := shown._repr_html_()):
            data["text/html"] = html.splitlines(True)
        outputs.append({"output_type": "execute_result", "metadata": {}, "data": data, "execution_count": None})
    for figure in pictures:
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=80, metadata={"Software": None})
        code = base64.b64encode(file.getvalue()).decode()
        outputs.append({"output_type": "display_data", "metadata": {}, "data": {"image/png": code}})
    plt.close("all")
    return outputs


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """The same notebook with the outputs of a fresh run."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell = {**cell, "outputs": run_cell("".join(cell["source"]), names), "execution_count": None}
        cells.append(cell)
    return {**notebook, "cells": cells}


def shown(output: dict[str, Any]) -> str:
    """The words and numbers of an output, after its kind."""
    data = output.get("data", {})
    page = re.sub(r"<style.*?</style>|</?[a-z][^>]*>", " ", "".join(data.get("text/html", [])), flags=re.DOTALL)
    text = page or "".join(output.get("text") or data.get("text/plain", []))
    return " ".join([output["output_type"], *sorted(data), *text.split()])


def differences(stored: dict[str, Any], fresh: dict[str, Any]) -> list[str]:
    """Each output that shows something else than what is stored."""
    found = []
    for cell, other in zip(stored["cells"], fresh["cells"], strict=True):
        before, now = ([shown(output) for output in one.get("outputs", [])] for one in (cell, other))
        if len(before) != len(now) or not all(map(alike, before, now)):
            found.append("\n".join([*(f"- {one}" for one in before), *(f"+ {one}" for one in now)]))
    return found


def alike(before: str, now: str) -> bool:
    """Whether two texts have the same words, and numbers that are close."""
    pairs = zip(NUMBER.findall(before), NUMBER.findall(now), strict=False)
    close = (math.isclose(float(one), float(other), rel_tol=CLOSE, abs_tol=ROUNDED) for one, other in pairs)
    return NUMBER.sub("#", before) == NUMBER.sub("#", now) and all(close)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stored = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    fresh = run(stored)
    if not check:
        NOTEBOOK.write_text(json.dumps(fresh, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return 0
    if found := differences(stored, fresh):
        more = "\n".join(found)
        sys.stderr.write(f"docs/notebook.ipynb shows something else now. Run: python docs/run_notebook.py\n{more}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
