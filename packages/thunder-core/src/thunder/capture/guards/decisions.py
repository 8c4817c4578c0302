# SPDX-License-Identifier: Apache-2.0
"""Decisions: answers to a program that needs the value of a tensor while it is traced, e.g. for a branch.

The operations that lead to the value run on this call's inputs (`evaluation.py`). The program then continues with the
answer, and the trace gets a line `decide(u0 > 3, True, 0)`, which checks the answer in each call. All writes to memory
and all other effects come after the last decision, so a call can start again on another path (`frontend/paths.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from thunder.capture.base.fallback import fall_back
from thunder.capture.base.user_lines import user_line
from thunder.capture.guards.evaluation import Evaluation, is_pure, may_run_twice
from thunder.core import prims
from thunder.core.errors import DataDependentError
from thunder.core.symbol import BoundSymbol
from thunder.core.symint.functions import SymbolicBool
from thunder.core.symint.numbers import OPPOSITE, Constraint, SymbolicNumber
from thunder.passes.checkpoint import copy_operations
from thunder.runtime.decisions import Decision

if TYPE_CHECKING:
    from thunder.capture.tensors.tracer import Tracer

__all__ = ["Decisions"]

# A program that makes more decisions runs eagerly: a path of so many answers is rarely taken again.
MAX_DECISIONS = 256


class Decisions:
    """The decisions of one trace.

    `imposed` are the answers to the first decisions, which a run of another path has found.
    """

    def __init__(self, tracer: Tracer, evaluation: Evaluation, imposed: Sequence[Any] = ()):
        self._tracer = tracer
        self._evaluation = evaluation
        self._imposed = imposed
        self._known: dict[tuple[int, str], Any] = {}  # answers by scope and question
        self._moved: dict[str, Any] = {}  # copies of values of parts, by the names of the values
        self.made: list[Decision] = []

    def condition(self, constraint: Constraint) -> bool:
        """Return whether a condition on numbers of the program is true, and record the decision."""
        asked = self._question(constraint)
        known = len(self.made)
        answer = bool(self._answer(asked))
        whole = all(issubclass(x.__class__, int) for x in (constraint.left, constraint.right))
        relation = constraint.relation if answer else OPPOSITE[constraint.relation]
        if len(self.made) > known and whole and relation != "!=":
            self._symbols.assume(constraint.left, relation, constraint.right)
        return answer

    def known(self, constraint: Constraint) -> bool | None:
        """Return the answer to a condition that has been decided before, else None."""
        scope = self._tracer.scope_of_user_code
        return self._known.get((id(scope), self._question(constraint).text()))

    def answers(self, constraint: Constraint) -> bool:
        """Decide a condition that an operation needs, before the operation; return whether it was not known before."""
        known = len(self.made)
        try:
            self.condition(constraint)
        except DataDependentError:
            return False  # the number is made by the operation itself, or no path can start again
        return len(self.made) > known

    def value(self, number: SymbolicNumber) -> Any:
        """Return the value of a number of the program, and record the decision that it has this value."""
        known = len(self.made)
        answer = self._answer(number)
        if len(self.made) > known and type(answer) is int:
            self._symbols.assume(number, "==", answer)
        return answer

    def _question(self, constraint: Constraint) -> Any:
        if constraint.relation == "==" and constraint.right is True:
            return constraint.left
        return self._symbols.deferred(*constraint)

    @property
    def _symbols(self) -> Any:
        return self._tracer.trace.info["symbols"]

    def _answer(self, number: Any) -> Any:
        asked, scope = number, self._tracer.scope_of_user_code
        if not self._can_start_again(scope, asked):
            asked, scope = self._before_part(number)
        if not self._can_start_again(scope, asked):
            raise self._symbols.data_dependent_error(None, number)
        if len(self.made) >= MAX_DECISIONS:
            fall_back(f"the program needs more than {MAX_DECISIONS} values of tensors, e.g. for the steps of a loop")
        question = asked.text()
        if (id(scope), question) not in self._known:
            index = len(self.made)
            found = self._imposed[index] if index < len(self._imposed) else self._evaluated(asked)
            answer = asked.__class__(found)
            scope.append(BoundSymbol(prims.decide, (asked, answer, index), {}, None, (), user_line()))
            self.made.append(Decision(question, answer, user_line(), self._evaluation.is_random(asked.leaves)))
            self._known[id(scope), question] = answer
        return self._known[id(scope), question]

    def _before_part(self, asked: Any) -> tuple[Any, list[BoundSymbol]]:
        """Return a number of a part of the program as a number of the program before it, and the scope of that number.

        The part is a custom backward, or the function of `vmap`. The operations that compute the number are copied
        there, unless they need the part's own inputs: the gradients that arrive, or one example of a batch.
        """
        scopes = self._tracer.trace.scopes
        if self._tracer.custom_backward is not None:
            forward, backward = self._tracer.custom_backward
            start = next(i for i, scope in enumerate(scopes) if scope is backward)
        else:
            forward, allowed = [], self._allowed_scopes()
            start = next((i for i, scope in enumerate(scopes) if not any(scope is a for a in allowed)), 0)
        if not start:
            return asked, scopes[-1]
        inside = [*forward, *[op for scope in scopes[start:] for op in scope]]
        producers = {name: op for op in inside for name in op.out_names}
        outside = {name for scope in scopes[:start] for op in scope for name in op.out_names}
        outside.update(x.proxy.name for x in self._tracer.inputs)
        found: dict[int, BoundSymbol] = {}
        stack = [p.name for p in asked.leaves if p.value is None]
        while stack:
            name = stack.pop()
            if name in outside or name in self._moved:
                continue
            same = self._outer_value(name)
            if same is not None and same.name in outside:
                self._moved[name] = same
                continue
            op = producers.get(name)
            if op is None or not is_pure(op):
                return asked, scopes[-1]
            if id(op) not in found:
                found[id(op)] = op
                stack += op.arg_names
        moved = [op for op in inside if id(op) in found]
        scopes[start - 1] += copy_operations(moved, self._moved, self._tracer.trace, new_numbers=True)
        same = asked.substitute(lambda p: self._moved.get(p.name, p))
        if asked.__class__ is bool:
            same = SymbolicBool(self._symbols, same.poly, None)
        return same, scopes[start - 1]

    def _outer_value(self, name: str) -> Any:
        """Return the value outside of all parts that a part's own input stands for; None if there is no single one."""
        found = None
        while name in self._tracer.stand_ins:
            found, batch_dim = self._tracer.stand_ins[name]
            if batch_dim is not None:
                return None
            name = found.name
        return found

    def _evaluated(self, asked: Any) -> Any:
        try:
            return self._evaluation.number(asked)
        except LookupError:
            raise self._symbols.data_dependent_error(None, asked) from None

    def _allowed_scopes(self) -> list[list[BoundSymbol]]:
        return [self._tracer.trace.scopes[0], *self._tracer.scopes_of_parts]

    def _can_start_again(self, scope: list[BoundSymbol], asked: Any) -> bool:
        """Check whether a call can start again on another path after a decision at the end of `scope`."""
        scopes = self._tracer.trace.scopes
        made_in = {name: scope for scope in scopes for op in scope for name in op.out_names}
        allowed = self._allowed_scopes()
        around = scopes[: 1 + next(i for i, s in enumerate(scopes) if s is scope)]
        if not all(any(s is a for a in allowed) for s in around):
            return False
        if any(not any(made_in[p.name] is s for s in around) for p in asked.leaves if p.name in made_in):
            return False
        # An effect would be repeated.
        return all(may_run_twice(op) for s in around for op in s)
