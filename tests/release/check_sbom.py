"""The bill of materials names distlfm and every version that is pinned."""

from __future__ import annotations

import json
import sys

from check_installed import PROJECT, canonical, versions


def faults_of(bill: dict[str, object], pinned: dict[str, str]) -> list[str]:
    """One line for each pinned package that the bill lacks, or has in another version."""
    components = bill["components"]
    assert isinstance(components, list)
    listed = {canonical(one["name"]): str(one.get("version", "")).partition("+")[0] for one in components}
    missing = [f"{name} {version} is not in it" for name, version in pinned.items() if listed.get(name) != version]
    return ([] if bill.get("bomFormat") == "CycloneDX" else ["it is not CycloneDX"]) + sorted(missing)


def main() -> int:
    bill = json.loads((PROJECT / "build" / "sbom.json").read_text(encoding="utf-8"))
    faults = faults_of(bill, versions((PROJECT / "constraints.txt").read_text().splitlines()))
    for fault in faults:
        sys.stderr.write(f"build/sbom.json: {fault}\n")
    sys.stdout.write(f"{len(bill['components'])} components, {len(faults)} faults\n")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
