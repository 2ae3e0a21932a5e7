"""Notebooks as pages: cells with the outputs that are stored in them. Nothing is run, and no kernel is needed."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx


class NotebookParser(MystParser):
    """Reads a notebook as the Markdown that it shows."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        super().parse(as_markdown(json.loads(inputstring)), document)


def as_markdown(notebook: dict[str, Any]) -> str:
    """The cells and outputs of a notebook as Markdown, pictures in place."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        parts += [shown for output in cell.get("outputs", []) if (shown := _shown(output))]
    return "\n\n".join(parts) + "\n"


def _shown(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    data = output.get("data", {})
    if "text/html" in data:
        html = "".join(data["text/html"]).replace("\n\n", "\n")
        return f'```{{raw}} html\n<div class="output">{html}</div>\n```'
    if "image/png" in data:
        code = base64.b64encode(base64.b64decode("".join(data["image/png"]))).decode()
        return f'```{{raw}} html\n<img alt="picture of the cell above" src="data:image/png;base64,{code}">\n```'
    return f"```text\n{''.join(data.get('text/plain', [])).rstrip()}\n```"


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    return {"version": Path(__file__).stem, "parallel_read_safe": True}
