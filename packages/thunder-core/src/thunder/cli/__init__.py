# SPDX-License-Identifier: Apache-2.0
"""The command line: `python -m thunder COMMAND`. Each command has a file, which defines `add_parser`.

`plugins` and `doctor` diagnose broken environments. Even if torch is broken or missing, they work and report the
problem. Therefore nothing here imports torch before a command needs it.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence

from thunder.core.errors import PluginLoadError
from thunder.core.tracebacks import present
from thunder.plugins.discovery import core_version

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Return the exit status: 0 for success, 1 for a failure, 2 for an invalid command line."""
    # The imports are local because child processes of `doctor` import this package, and need no command.
    from thunder.cli import conformance
    from thunder.cli.target import BadTarget

    arguments = list(sys.argv[1:] if argv is None else argv)
    arguments, rest = conformance.split(arguments)
    args, unknown = build_parser().parse_known_args(arguments)
    if unknown:
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")  # with the usage of the command
    args.rest = rest
    try:
        return int(args.run(args))
    except PluginLoadError as error:
        print(f"thunder {args.command}: {error}", file=sys.stderr)
        return 1
    except BadTarget as error:
        print(f"thunder {args.command}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # The reader (e.g. `| head`) closed the pipe. Python must not report this at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if not hasattr(args, "target"):
            raise
        present(error)
        print(f"thunder {args.command}: {args.target} raised an error\n", file=sys.stderr)
        traceback.print_exception(error)
        return 1


def build_parser() -> argparse.ArgumentParser:
    """Create the parser of all commands."""
    # The import is local because child processes of `doctor` import this package, and need no command.
    from thunder.cli import bench, cache, conformance, doctor, explain, new_plugin, ops, plugins, report, trace

    parser = argparse.ArgumentParser(prog="thunder", description="thunder: a source-to-source compiler for PyTorch")
    parser.add_argument("--version", action="version", version=f"thunder-core {core_version() or '(not installed)'}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in (plugins, doctor, ops, conformance, explain, trace, bench, report, new_plugin, cache):
        added = command.add_parser(subparsers)
        added.set_defaults(parser=added)
    return parser
