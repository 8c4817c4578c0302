# SPDX-License-Identifier: Apache-2.0
"""The text of `thunder.explain`: what ran how often, what was recompiled and why, what ran eagerly, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from thunder.core.events import Event

__all__ = ["MAX_PROGRAMS", "counted", "explained", "first_line"]

MAX_PROGRAMS = 16
_MAX_FALLBACKS = 8
_CHOICE = ("operation", "shape_class", "device", "default")  # what identifies a choice


def explained(stats: Any) -> str:
    """Return the report of a `CompileStats`. Each function below returns the lines of one section."""
    sections = (_programs, _saved, _choices, _decisions, _recompilations, _eager, _kernels, _modules, _advice)
    return "\n".join([first_line(stats), *(line for section in sections for line in section(stats))])


def first_line(stats: Any) -> str:
    """Return the numbers of calls."""
    text = (
        f"{counted(stats.calls, 'call')}: {counted(stats.cache_hits, 'cache hit')}, "
        f"{counted(stats.cache_misses, 'compilation')}"
    )
    eager = [(stats.eager_calls, "eager"), (stats.partly_eager_calls, "partly eager")]
    others = ", ".join(f"{count} {what}" for count, what in eager if count)
    return f"{text} ({others})" if others else text


def _programs(stats: Any) -> Iterator[str]:
    """List the cached programs, oldest first."""
    cached = list(stats.cache)[::-1]
    for number, program in enumerate(cached[:MAX_PROGRAMS], start=1):
        saved = program.event is not None and program.event.kind == "saved"
        yield f"program {number}: {_described(program.event, program.hits + (not saved))}"


def _described(event: Event | None, runs: int) -> str:
    ran = f"ran {'once' if runs == 1 else f'{runs} times'}"
    if event is None:
        return ran
    if event.kind == "saved":
        seconds = "" if event.seconds is None else f" in {event.seconds:.2f} s"
        return f"{ran}, read from the saved programs{seconds}"
    executors = ", ".join(f"{count} by {name}" for name, count in event.details["executors"].items())
    operations = counted(event.details["operations"], "operation") + (f" ({executors})" if executors else "")
    return f"{ran}, {operations}, compiled in {event.seconds:.2f} s because {event.reason}"


def _saved(stats: Any) -> Iterator[str]:
    """List why programs were not read from the saved programs, or not saved."""
    events = [event for event in stats.events.of("saved") if not event.details.get("quiet")]
    reasons = Counter(event.reason for event in events if not event.reason.startswith(("hit", "saved")))
    for reason, count in reasons.items():
        yield f"saved programs: {reason}{_times(count)}"


def _choices(stats: Any) -> Iterator[str]:
    """List the choices of measurements, with the times of their candidates. The last event of a choice counts."""
    events = {str([event.details[name] for name in _CHOICE]): event.reason for event in stats.events.of("choice")}
    counts = Counter(events.values())
    if counts:
        yield "choices by measurement"
        for reason, count in counts.items():
            yield f"  {reason}{_times(count)}"


def _decisions(stats: Any) -> Iterator[str]:
    """List the paths of a function that branches on values of tensors, with the answers of its decisions."""
    for path in stats.cache.paths:
        yield from str(path).split("\n")


def _recompilations(stats: Any) -> Iterator[str]:
    if stats.refused:
        yield "recompiled because"
        for reason in dict.fromkeys(stats.refused):
            yield f"  {reason}"
    earlier = Counter(e.reason for e in stats.events.of("guard"))
    more = {reason: count for reason, count in earlier.items() if reason not in stats.refused}
    if more:
        yield "earlier recompilations because"
        for reason, count in more.items():
            yield f"  {reason}{_times(count)}"


def _eager(stats: Any) -> Iterator[str]:
    if stats.uncacheable is not None:
        yield f"not cached: {stats.uncacheable}"
    if stats.constant is not None:
        yield f"static sizes and numbers: tracing with symbolic ones failed ({stats.constant})"
    if stats.eager is not None:
        yield f"falls back to eager: {stats.eager}"
    replicated = Counter((e.reason, e.where) for e in stats.events.of("replicated"))
    if replicated:
        yield "operations on replicated DTensors"
        yield from (f"  {reason}{_at(where)}" for reason, where in replicated)
    fallbacks = Counter((e.reason, e.where) for e in stats.events.of("fallback") if e.details["scope"] == "call")
    if fallbacks:
        yield "calls that ran eagerly"
        for (reason, where), count in fallbacks.most_common(_MAX_FALLBACKS):
            yield f"  {reason}{_at(where)}{_times(count)}"


def _kernels(stats: Any) -> Iterator[str]:
    """List the operations that run in parts because no executor has a kernel for them."""
    missing = Counter((e.reason, e.where) for e in stats.events.of("kernel"))
    for (reason, where), count in missing.items():
        yield f"without a kernel: {reason}{_at(where)}{_times(count)}"


def _modules(stats: Any) -> Iterator[str]:
    """List the modules that are compiled one by one, and the reports of the last program."""
    if stats.per_module is not None:
        yield f"partly eager: {stats.partly_eager}; the modules that it calls are compiled one by one"
        where = next((e.where for e in reversed(stats.events.of("fallback")) if e.details["scope"] == "modules"), None)
        if where is not None:
            yield f"  at {where}"
        for program in stats.per_module.programs:
            yield f"  {program!r}: {counted(program._stats.calls, 'call')}, {_compilations(program._stats)}"
    if stats.last is not None:
        yield from stats.last.reports


def _compilations(stats: Any) -> str:
    return counted(stats.cache_misses, "compilation")


def _advice(stats: Any) -> Iterator[str]:
    found = list(_advised(stats))
    if found:
        yield "what to do"
        for advice in found:
            yield f"  {advice}"


def _advised(stats: Any) -> Iterator[str]:
    numbers = any(e.details.get("number") for e in stats.events.of("guard"))
    if numbers and stats.refused and not stats.cache.dynamic.everything:
        yield 'sizes and numbers that change twice become inputs; cache="symbolic values" makes them inputs at once'
    if stats.eager is not None and stats.events.of("guard"):
        yield "pass the changing value as a tensor, or clear the cache with thunder.reset()"
    if stats.uncacheable is not None and stats.per_module is None and not stats.cache_hits:
        yield "move this code out of the jitted function, so that the rest is compiled once"
    if stats.per_module is not None:
        yield "move the code that thunder cannot compile out of the jitted function, or jit the modules"


def _at(where: Any) -> str:
    return "" if where is None else f" (at {where})"


def _times(count: int) -> str:
    return "" if count == 1 else f" ({count} times)"


def counted(n: int, thing: str) -> str:
    """Return a number and its noun, in the plural unless the number is 1."""
    return f"{n} {thing}{'' if n == 1 else 's'}"
