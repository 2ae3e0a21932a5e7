"""May a process open as many files as Ray and a store with many shards need?"""

from __future__ import annotations

import resource

from distlfm.pipeline.probes.answer import Finding, reply

MINIMUM_OPEN_FILES = 1024


def check() -> str:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < MINIMUM_OPEN_FILES:
        raise Finding("broken", f"only {soft} open files a process; {MINIMUM_OPEN_FILES} are needed")
    return "unlimited" if soft == resource.RLIM_INFINITY else f"{soft} open files a process"


if __name__ == "__main__":
    reply(check)
