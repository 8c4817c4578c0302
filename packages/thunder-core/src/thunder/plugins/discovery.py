# SPDX-License-Identifier: Apache-2.0
"""Find the installed executor plugins: a scan of package metadata that imports none of them.

A plugin is an entry point in the group `thunder.executors.v1`. The number is the version of the plugin API. An entry
point with another version is reported and never imported. This module also checks a distribution's requirement on
thunder-core: installers do not check it again when thunder-core itself is upgraded or downgraded.

If two distributions provide a plugin of the same name, the choice must not depend on the order of a directory listing.
The distribution that is named after the plugin (`thunder-ex-NAME`) wins, otherwise the first in alphabetical order. The
other plugin is blocked, both records name both distributions, and a warning is logged. To use the other plugin, disable
the distribution that wins: `THUNDER_DISABLE_PLUGINS=thunder-ex-acme`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata

from thunder.core.environment import DISABLE_VARIABLE, names_in
from thunder.plugins.record import PluginRecord, PluginState
from thunder.plugins.version import InvalidRequirement, normalize_name, requirement_specifiers, satisfies

__all__ = ["API_VERSION", "GROUP", "core_version", "disabled_names", "discover"]

API_VERSION = 1
GROUP_PREFIX = "thunder.executors.v"
GROUP = f"{GROUP_PREFIX}{API_VERSION}"
CORE_DISTRIBUTION = "thunder-core"

#: The names of core's executors. A plugin cannot use them.
RESERVED_NAMES = frozenset({"torch", "python"})

_GROUP = re.compile(re.escape(GROUP_PREFIX) + r"\d+")


def core_version() -> str | None:
    """Return the version of the installed thunder-core; None if thunder runs from an uninstalled source tree."""
    try:
        return metadata.version(CORE_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


def disabled_names(environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """Return the plugins or distributions in THUNDER_DISABLE_PLUGINS (comma-separated). `*` means all of them."""
    return frozenset(names_in(DISABLE_VARIABLE, environ))


def without_plugin(name: str) -> str:
    """Return a text to append to errors if a distribution is installed but lacks this plugin's entry point."""
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
    """Return a record for each plugin entry point, ordered by plugin and distribution. Only metadata is checked.

    distributions: the distributions to scan; the default is all on `sys.path`.
    environ: where THUNDER_DISABLE_PLUGINS is read; the default is `os.environ`.
    core: the version of thunder-core to check against; the default is the installed version.
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
        except Exception:  # Unreadable metadata is not fatal. Treat it as a distribution without plugins.
            continue
        if found and (name := normalize_name(found[0].distribution)) not in seen:
            seen.add(name)  # Python imports the first of two copies on sys.path
            records.extend(found)
    return sorted(
        records, key=lambda record: (record.name, normalize_name(record.distribution), record.entry_point.group)
    )


def _records_of(distribution: metadata.Distribution) -> Iterator[PluginRecord]:
    text = distribution.read_text("entry_points.txt")
    if not text or GROUP_PREFIX not in text:  # most distributions return here, before anything is parsed
        return
    entry_points = [entry for entry in distribution.entry_points if _GROUP.fullmatch(entry.group)]
    ours = {entry.name for entry in entry_points if entry.group == GROUP}
    name = distribution.metadata["Name"]
    if not name:
        return  # the metadata of a distribution that was deleted by hand
    ranges = requirement_specifiers(distribution.requires, CORE_DISTRIBUTION)
    for entry in entry_points:
        if entry.group != GROUP and entry.name in ours:
            continue  # a wheel may support several API versions, including this one
        yield PluginRecord(
            name=entry.name,
            entry_point=entry,
            distribution=name,
            version=distribution.version,
            requires_core=",".join(text for text in ranges if text) or None,
        )


def _judge(record: PluginRecord, disabled: frozenset[str], core: str | None) -> None:
    """Move a FOUND record to its next state, using only metadata."""
    group = record.entry_point.group
    distributions = {normalize_name(name) for name in disabled}
    if "*" in disabled or record.name in disabled or normalize_name(record.distribution) in distributions:
        record.end(PluginState.BLOCKED, f"disabled by {DISABLE_VARIABLE}")
    elif group != GROUP:
        reason = f"made for plugin API {group.removeprefix(GROUP_PREFIX)}, but this thunder-core has {API_VERSION}"
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
        record.end(PluginState.INCOMPATIBLE, f"requires {CORE_DISTRIBUTION}{wanted}, but {core} is installed")


def _resolve_conflicts(candidates: list[PluginRecord]) -> None:
    """Keep one plugin of each name, by the rule in this module's docstring. Block the others."""
    by_name: dict[str, list[PluginRecord]] = {}
    for record in candidates:
        by_name.setdefault(record.name, []).append(record)
    for name, rivals in by_name.items():
        if len(rivals) == 1:
            continue
        # `candidates` is ordered by distribution, and sorting is stable.
        rivals.sort(key=lambda record: normalize_name(record.distribution) != normalize_name(f"thunder-ex-{name}"))
        winner, *losers = rivals
        owners = " and ".join(record.source for record in rivals)
        for record in rivals:
            record.conflict = f"{owners} both provide a plugin named {name!r}; that of {winner.distribution} is used"
        for record in losers:
            way_out = f"uninstall one of them, or set {DISABLE_VARIABLE}={winner.distribution}"
            record.end(PluginState.BLOCKED, f"{record.conflict} ({way_out})")
