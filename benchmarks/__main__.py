"""Run one benchmark: `python -m benchmarks NAME [--out FILE]`; `python -m benchmarks --list` names them."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import platform
import sys
import time
from pathlib import Path

import torch

import benchmarks


def names() -> dict[str, str]:
    """Every benchmark, which is a module with a function `run`, and the first line of its docstring."""
    found = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name != "__main__")
    modules = {name: importlib.import_module(f"benchmarks.{name}") for name in found}
    return {name: (one.__doc__ or "").partition("\n")[0] for name, one in modules.items() if hasattr(one, "run")}


def main() -> int:
    """Exit code 1 if a figure misses its goal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?")
    parser.add_argument("--list", action="store_true", help="name the benchmarks")
    parser.add_argument("--quick", action="store_true", help="a small version, for trying; its figures prove nothing")
    parser.add_argument("--out", type=Path, help="write the JSON there too")
    arguments = parser.parse_args()
    known = names()
    if arguments.list or arguments.name not in known:
        for name, line in known.items():
            print(f"{name:20} {line}")
        return 0 if arguments.list else 2
    torch.set_num_threads(1)
    start = time.perf_counter()
    result = importlib.import_module(f"benchmarks.{arguments.name}").run(quick=arguments.quick)
    result["benchmark"] = arguments.name
    result["quick"] = arguments.quick
    result["seconds"] = time.perf_counter() - start
    result["machine"] = {"python": platform.python_version(), "torch": torch.__version__, "threads": 1}
    result["ok"] = all(figure["ok"] for figure in result["figures"].values())
    text = json.dumps(result, indent=2)
    if arguments.out:
        arguments.out.write_text(text)
    print(text)
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
