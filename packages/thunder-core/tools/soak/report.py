# SPDX-License-Identifier: Apache-2.0
"""What a run of the judge found: counts, hits of unchanged calls, and failures by feature."""

from __future__ import annotations

import collections
import dataclasses

from soak.known import is_ordinary
from soak.program import Program
from soak.run import Verdict


@dataclasses.dataclass
class Report:
    """Counts over the programs judged so far."""

    programs: int = 0
    wrong: int = 0
    repeats: int = 0
    hits: int = 0
    ran_eagerly: int = 0
    ordinary_repeats: int = 0
    ordinary_hits: int = 0
    warned: int = 0
    invalid: int = 0
    judged: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    failed: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    missed: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    reasons: dict[str, str] = dataclasses.field(default_factory=dict)
    failures: list[tuple[Program, Verdict]] = dataclasses.field(default_factory=list)

    def add(self, program: Program, verdict: Verdict) -> bool:
        """Count a verdict, and return whether it is a failure."""
        self.programs += 1
        names = [use.feature.name for use in program.uses]
        self.judged.update(names)
        self.repeats += verdict.repeats
        self.hits += verdict.hits
        self.ran_eagerly += verdict.ran_eagerly
        if is_ordinary(program):
            self.ordinary_repeats += verdict.repeats
            self.ordinary_hits += verdict.hits
        self.warned += verdict.warned > 0
        if verdict.hits < verdict.repeats and len(names) == 1:
            self.missed[names[0]] += verdict.repeats - verdict.hits
            self.reasons.setdefault(names[0], verdict.not_cached)
        if verdict.kind == "invalid":
            self.invalid += 1
            self.failures.append((program, verdict))
        elif verdict.kind:
            self.wrong += 1
            self.failed.update(names)
            self.failures.append((program, verdict))
        return bool(verdict.kind)

    @property
    def hit_rate(self) -> float:
        """The part of unchanged repeated calls that hit."""
        return self.hits / self.repeats if self.repeats else 1.0

    @property
    def ordinary_hit_rate(self) -> float:
        """The same of programs without what `known.py` lists as not cached."""
        return self.ordinary_hits / self.ordinary_repeats if self.ordinary_repeats else 1.0

    def __str__(self) -> str:
        heading = (
            f"{self.programs} programs: {self.wrong} wrong, {self.invalid} invalid; {self.warned} with a warning of "
            f"thunder's; {self.hits} of {self.repeats} calls that were repeated unchanged hit ({self.hit_rate:.1%}), "
            f"{self.ran_eagerly} ran eagerly; of ordinary programs {self.ordinary_hits} of {self.ordinary_repeats} hit "
            f"({self.ordinary_hit_rate:.1%})"
        )
        lines = [heading]
        if self.failed:
            lines.append("\nwrong, by feature:")
            lines += [f"  {n:5} of {self.judged[name]:5}  {name}" for name, n in self.failed.most_common()]
        if self.missed:
            lines.append("\nno cache hits of programs with one feature that were called again unchanged:")
            lines += [f"  {n:5}  {name}: {self.reasons[name][:150]}" for name, n in self.missed.most_common()]
        return "\n".join(lines)
