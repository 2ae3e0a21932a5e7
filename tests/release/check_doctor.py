"""Read `distlfm doctor --json`: nothing is broken, and nothing is missing but what is named.

python check_doctor.py doctor.json cuda,slurm
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(path: str, may_be_missing: str) -> int:
    checks = json.loads(Path(path).read_text())
    allowed = {"ok": None, "missing": may_be_missing.split(",")}
    faults = 0
    for check in checks:
        names = allowed.get(check["status"], [])
        is_fault = names is not None and check["name"] not in names
        faults += is_fault
        sys.stdout.write(f"{'!!' if is_fault else '  '} {check['name']}: {check['status']}, {check['detail']}\n")
    return 1 if faults or not checks else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
