# SPDX-License-Identifier: Apache-2.0
"""The operators that take longest to trace: each is recorded with its simplest sample.

    python packages/thunder-core/benchmarks/symbols.py [--markdown FILE] [--json FILE] [--count 20]

A time is the best of several repetitions, of the call and its decomposition, without the frontend's overhead
for a user's call. The last column is the number of recorded operations, at all levels.
"""

from __future__ import annotations

import warnings
from typing import Any

import measuring
import torch
from measuring import Report, Row, best, microseconds, per_call

DTYPES = (torch.float32, torch.int64, torch.complex64, torch.bool)


def traced(info: Any) -> tuple[float, int] | None:
    """Return seconds and recorded operations of the operator's simplest sample; None if none can be traced."""
    from thunder.tests.running import all_levels, trace_sample

    for dtype in DTYPES:
        try:
            sample = info.first_sample("cpu", dtype)
            if sample is None:
                continue
            recorded = len([*all_levels(trace_sample(info, sample).bound_symbols)]) - 1  # the return
        except Exception:  # this dtype is not supported
            continue
        return best([per_call(lambda s=sample: trace_sample(info, s), 0.002) for _ in range(5)]), recorded
    return None


SUMMARY = ("mean of all operators", "median of all operators")


def main() -> None:
    options = measuring.parser(__doc__.partition("\n")[0])
    options.add_argument("--count", type=int, default=20, help="how many to list (default: 20)")
    given = options.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    from thunder.tests.opinfos import all_opinfos

    wanted = "" if given.rows in SUMMARY else given.rows.strip("`")
    found = {}
    for info in all_opinfos():
        if wanted in info.name and (result := traced(info)) is not None:
            found[info.name] = result
    if not found:
        raise SystemExit(f"no operator's name contains {given.rows!r}")
    slowest = sorted(found.items(), key=lambda item: -item[1][0])
    middle = slowest[len(slowest) // 2][1][0]
    report = Report("symbols", __file__, ["time", "operations"])
    for name, (seconds, recorded) in slowest[: given.count]:
        cells = {"time": microseconds(seconds), "operations": str(recorded)}
        report.add(Row(f"`{name}`", cells, (), {"seconds": seconds}))
    if not wanted:
        mean = sum(t for t, _ in found.values()) / len(found)
        for name, seconds in zip(SUMMARY, (mean, middle)):
            report.add(Row(name, {"time": microseconds(seconds), "operations": ""}))
    report.finish(given)


if __name__ == "__main__":
    main()
