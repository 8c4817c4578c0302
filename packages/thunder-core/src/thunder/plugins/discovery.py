# SPDX-License-Identifier: Apache-2.0
"""Which executor plugins are installed: a scan of package metadata that imports none of them.

A plugin is an entry point in the group `thunder.executors.v1`. The number is the version of the plugin API: an entry
point of another version is reported and never imported. A distribution's requirement on thunder-core is checked here
too, because installers do not check it again when thunder-core itself is upgraded or downgraded.

When two distributions provide a plugin of the same name, the choice must not depend on the order of a directory
listing. The rule: the distribution that is named after the plugin (`thunder-ex-NAME`) wins, else
the first in alphabetical order. The other is blocked, both records name both distributions, and a warning is logged.
A user who wants the other one disables the winner by its distribution: `THUNDER_DISABLE_PLUGINS=thunder-ex-acme`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata

from thunder.plugins.record import PluginRecord, PluginState
from thunder.plugins.version import InvalidRequirement, normalize_name, requirement_specifiers, satisfies

__all__ = ["API_VERSION", "GROUP", "core_version", "disabled_names", "discover"]

API_VERSION = 1
GROUP_PREFIX = "thunder.executors.v"
GROUP = f"{GROUP_PREFIX}{API_VERSION}"
CORE_DISTRIBUTION = "thunder-core"
DISABLE_VARIABLE = "THUNDER_DISABLE_PLUGINS"
EXECUTORS_VARIABLE = "THUNDER_EXECUTORS"

#: Names of core's own executors; a plugin cannot use them.
RESERVED_NAMES = frozenset({"torch", "python"})

_GROUP = re.compile(re.escape(GROUP_PREFIX) + r"\d+")


def core_version() -> str | None:
    """Return the version of the installed thunder-core, or None when thunder runs from a source tree that is not
    installed.
    """
    try:
        return metadata.version(CORE_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


def names_in(variable: str, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the names in a comma-separated environment variable, in order and without duplicates."""
    value = (os.environ if environ is None else environ).get(variable, "")
    return tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))


def disabled_names(environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """Return the plugins or distributions named in THUNDER_DISABLE_PLUGINS, comma-separated; `*` stands for all."""
    return frozenset(names_in(DISABLE_VARIABLE, environ))


def without_plugin(name: str) -> str:
    """Return an addition to error messages for a distribution that is installed but lacks this plugin's entry point."""
    distribution = f"thunder-ex-{normalize_name(name)}"
    try:
        version = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
    return f". {distribution} {version} is installed, but has no entry point {name!r} in the group {GROUP!r}"


def discover(
    distributions: Iterable[metadata.Distribution] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    core: str | None = None,
) -> list[PluginRecord]:
    """Return a record for each plugin entry point, checked by its metadata, ordered by plugin and distribution.

    distributions: those to scan, by default all on `sys.path`.
    environ: where THUNDER_DISABLE_PLUGINS is read, by default `os.environ`.
    core: the version of thunder-core to check against, by default the installed one.
    """
    core = core_version() if core is None else core
    disabled = disabled_names(environ)
    records = _scan(metadata.distributions() if distributions is None else distributions)
    for record in records:
        _judge(record, disabled, core)
    _resolve_conflicts([record for record in records if record.state is PluginState.COMPATIBLE])
    return records


def _scan(distributions: Iterable[metadata.Distribution]) -> list[PluginRecord]:
    records: list[PluginRecord] = []
    seen: set[str] = set()
    for distribution in distributions:
        try:
            found = list(_records_of(distribution))
        except Exception:  # unreadable metadata is not fatal: treated as a distribution without plugins
            continue
        if found and (name := normalize_name(found[0].distribution)) not in seen:
            seen.add(name)  # Python imports the first of two copies on sys.path
            records.extend(found)
    return sorted(
        records, key=lambda record: (record.name, normalize_name(record.distribution), record.entry_point.group)
    )


def _records_of(distribution: metadata.Distribution) -> Iterator[PluginRecord]:
    text = distribution.read_text("entry_points.txt")
    if not text or GROUP_PREFIX not in text:  # the common case returns before anything is parsed
        return
    entry_points = [entry for entry in distribution.entry_points if _GROUP.fullmatch(entry.group)]
    ours = {entry.name for entry in entry_points if entry.group == GROUP}
    name = distribution.metadata["Name"]
    if not name:
        return  # left over from a distribution that was deleted by hand
    ranges = requirement_specifiers(distribution.requires, CORE_DISTRIBUTION)
    for entry in entry_points:
        if entry.group != GROUP and entry.name in ours:
            continue  # one wheel may support several API versions, this one included
        yield PluginRecord(
            name=entry.name,
            entry_point=entry,
            distribution=name,
            version=distribution.version,
            requires_core=",".join(text for text in ranges if text) or None,
        )


def _judge(record: PluginRecord, disabled: frozenset[str], core: str | None) -> None:
    """Advance a FOUND record to its next state, from metadata alone."""
    group = record.entry_point.group
    distributions = {normalize_name(name) for name in disabled}
    if "*" in disabled or record.name in disabled or normalize_name(record.distribution) in distributions:
        record.end(PluginState.BLOCKED, f"disabled by {DISABLE_VARIABLE}")
    elif group != GROUP:
        reason = f"made for plugin API {group.removeprefix(GROUP_PREFIX)}, and this thunder-core has {API_VERSION}"
        record.end(
            PluginState.INCOMPATIBLE, f"{reason}: install a version of {record.distribution} that offers {GROUP!r}"
        )
    elif record.name in RESERVED_NAMES:
        record.end(PluginState.BLOCKED, f"the name {record.name!r} belongs to an executor of thunder-core")
    else:
        _judge_range(record, core)


def _judge_range(record: PluginRecord, core: str | None) -> None:
    wanted = record.requires_core
    try:
        fits = wanted is None or core is None or satisfies(core, wanted)
    except InvalidRequirement as error:
        record.end(PluginState.INCOMPATIBLE, f"its requirement {CORE_DISTRIBUTION}{wanted} cannot be read: {error}")
        return
    if fits:
        record.state = PluginState.COMPATIBLE
    else:
        record.end(PluginState.INCOMPATIBLE, f"requires {CORE_DISTRIBUTION}{wanted}, and {core} is installed")


def _resolve_conflicts(candidates: list[PluginRecord]) -> None:
    """Keep one plugin of each name, by the rule in this module's docstring, and block the others."""
    by_name: dict[str, list[PluginRecord]] = {}
    for record in candidates:
        by_name.setdefault(record.name, []).append(record)
    for name, rivals in by_name.items():
        if len(rivals) == 1:
            continue
        # `candidates` is ordered by distribution; sorting is stable
        rivals.sort(key=lambda record: normalize_name(record.distribution) != normalize_name(f"thunder-ex-{name}"))
        winner, *losers = rivals
        owners = " and ".join(record.source for record in rivals)
        for record in rivals:
            record.conflict = f"{owners} both bring a plugin named {name!r}; the one of {winner.distribution} is used"
        for record in losers:
            way_out = f"uninstall one of them, or set {DISABLE_VARIABLE}={winner.distribution}"
            record.end(PluginState.BLOCKED, f"{record.conflict} ({way_out})")
