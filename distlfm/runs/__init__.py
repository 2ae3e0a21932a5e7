"""The files of runs, by name: apart, so that whoever only looks at a run loads nothing that computes."""

from __future__ import annotations

CONFIG, SUMMARY, REPORT = "config.yaml", "summary.json", "report.html"
OPERATOR = "operator.pt"
"""The checkpoint in the folder of a training run."""
