# SPDX-License-Identifier: Apache-2.0
"""The declaration of an operator for the suite: `OpInfo`, and `DecorateInfo` for pytest marks on its tests."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from thunder.core.devices import DeviceType
from thunder.core.dtypes import to_dtype, to_torch_dtype
from thunder.core.samples import ErrorSample, SampleInput
from thunder.core.symbol import OpTags, Symbol
from thunder.tests.known_failures import holds
from thunder.tests.make_tensor import seeded
from thunder.tests.running import REFUSALS, exists

__all__ = ["DecorateInfo", "Domain", "OpInfo", "samples_under_seed"]

SampleGenerator = Callable[..., Iterator[SampleInput]]
ErrorGenerator = Callable[..., Iterator[ErrorSample]]


# Operators with uninitialised results.
_WITHOUT_VALUES = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")


class Domain(NamedTuple):
    """The domain of an operator. A bound of None means unbounded."""

    low: float | None = None
    high: float | None = None


class DecorateInfo:
    """A pytest mark for some of the tests of an operator::

        DecorateInfo(pytest.mark.xfail, "test_core_vs_torch_consistency", dtypes=(datatypes.float16,),
                     devicetypes=(devices.DeviceType.CPU,), executors=("nvfuser",))

    Arguments that are omitted (including the test's name) match everything. dtypes and device types may be thunder's or
    torch's.
    """

    def __init__(
        self,
        mark: Any,
        test_name: str | None = None,
        *,
        dtypes: Sequence[Any] | None = None,
        devicetypes: Sequence[Any] | None = None,
        executors: Sequence[str] | None = None,
        active_if: bool = True,
    ):
        self.mark = mark
        self.test_name = test_name
        self.dtypes = None if dtypes is None else frozenset(to_torch_dtype(to_dtype(d)) for d in dtypes)
        self.devicetypes = None if devicetypes is None else frozenset(_type_name(d) for d in devicetypes)
        self.executors = None if executors is None else frozenset(executors)
        self.active_if = active_if

    def applies(self, test_name: str, executor: str, device: str, dtype: torch.dtype | None) -> bool:
        """Check whether the mark applies to a test."""
        return (
            self.active_if
            and self.test_name in (None, test_name)
            and (self.executors is None or executor in self.executors)
            and (self.devicetypes is None or device.partition(":")[0] in self.devicetypes)
            and (self.dtypes is None or dtype in self.dtypes)
        )


def _type_name(device: Any) -> str:
    return str(device if isinstance(device, (str, DeviceType)) else device.type).partition(":")[0].lower()


class OpInfo:
    """An operator, and how the suite tests it.

    - `op`: a symbol, or any function of thunder's operations (e.g. `clang.unfold`).
    - `sample_input_generator`: `(op, device, dtype, requires_grad, **kwargs)` yields instances of `SampleInput`.
    - `error_input_generator`: `(op, device, dtype=torch.float32, **kwargs)` yields `(sample, exception type, pattern)`.
    - `torch_reference`: computes the expected result from the same arguments on real tensors.
    - `test_directives`: a list of `DecorateInfo` objects.
    - `domain`: the interval on which the operator is defined, `(low, high)`.
    - `dtypes`, `devicetypes`: those that the operator supports; None means those of its reference.
    - `supports_grad`: False means that its gradient is not tested; True means that it has a gradient; None means that
      it has one if its reference has one.
    - `family`: its row in the summary table.
    """

    def __init__(
        self,
        op: Callable[..., Any],
        *,
        name: str | None = None,
        sample_input_generator: SampleGenerator,
        error_input_generator: ErrorGenerator | None = None,
        torch_reference: Callable[..., Any] | None = None,
        test_directives: Sequence[DecorateInfo] = (),
        domain: tuple[float | None, float | None] = (None, None),
        dtypes: Sequence[Any] | None = None,
        devicetypes: Sequence[Any] | None = None,
        supports_grad: bool | None = None,
        family: str | None = None,
    ):
        self.op = op
        self.name: str = name or op.__name__
        self.sample_input_generator = sample_input_generator
        self.error_input_generator = error_input_generator
        self.torch_reference = torch_reference
        self.test_directives = tuple(test_directives)
        self.domain = Domain(*domain)
        self.dtypes = None if dtypes is None else frozenset(to_torch_dtype(to_dtype(d)) for d in dtypes)
        self.devicetypes = None if devicetypes is None else frozenset(_type_name(d) for d in devicetypes)
        self.supports_grad = supports_grad
        self.family = family or "other"

    def __repr__(self) -> str:
        return f"OpInfo({self.name!r})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.op(*args, **kwargs)

    @functools.cached_property
    def symbol(self) -> Symbol:
        """The operator as a symbol. A plain function becomes a composite of the same name."""
        if isinstance(self.op, Symbol):
            return self.op
        return Symbol(self.op.__name__, self.op, id=f"{self.op.__module__}.{self.op.__name__}")

    @property
    def tags(self) -> frozenset[OpTags]:
        """The operator's tags."""
        return self.symbol.tags

    @property
    def has_values(self) -> bool:
        """Whether arguments and random state determine the result. If not, it contains uninitialised memory."""
        return self.name.removeprefix("prims.") not in _WITHOUT_VALUES

    # -- inputs -------------------------------------------------------------------------------------------------------
    def sample_inputs(
        self, device: Any = "cpu", dtype: Any = torch.float32, *, requires_grad: bool = False, **kwargs: Any
    ) -> list[SampleInput]:
        """Return all samples. They are reproducible."""
        generator = functools.partial(self.sample_input_generator, self, device, to_torch_dtype(dtype), requires_grad)
        found = samples_under_seed(self.name, generator, **kwargs)
        return [s for s in found if getattr(s, "unless", None) is None or not self._is_left_out(s, device)]

    def _is_left_out(self, sample: SampleInput, device: Any) -> bool:
        return holds(sample.unless or {}, [str(device)], f"a sample of {self.name}")

    def error_inputs(self, device: Any = "cpu", **kwargs: Any) -> list[ErrorSample]:
        """Return all samples that must raise. They are reproducible."""
        if self.error_input_generator is None:
            return []
        return samples_under_seed(self.name, functools.partial(self.error_input_generator, self, device), **kwargs)

    def first_sample(self, device: Any = "cpu", dtype: Any = torch.float32) -> SampleInput | None:
        """Return the simplest sample."""
        generator = functools.partial(self.sample_input_generator, self, device, to_torch_dtype(dtype), False)
        found = samples_under_seed(self.name, lambda: _first(generator()))
        return found[0] if found else None

    # -- support -----------------------------------------------------------------------------------------------------
    def exists_for(self, device: str, dtype: torch.dtype) -> bool:
        """Check whether the operator supports a dtype and a device, i.e. whether its reference accepts any sample."""
        if self.devicetypes is not None and device.partition(":")[0] not in self.devicetypes:
            return False
        if self.dtypes is not None:
            return dtype in self.dtypes
        return self._probe(device, dtype)

    @functools.cache  # noqa: B019  an OpInfo lives as long as the process
    def _probe(self, device: str, dtype: torch.dtype) -> bool:
        try:
            samples = self.sample_inputs(device, dtype)
        except REFUSALS:
            return False  # For this dtype, even creating a sample fails (e.g. `make(3) > 0` for complex numbers).
        except Exception:  # a bug of the generator, which a test reports
            return True
        # For empty tensors torch often returns before it checks the dtype.
        return any(exists(self, sample, with_values=self.has_values) for sample in samples)

    def marks(self, test_name: str, executor: str, device: str, dtype: torch.dtype | None) -> list[Any]:
        """Return the pytest marks that the directives give to a test."""
        return [d.mark for d in self.test_directives if d.applies(test_name, executor, device, dtype)]


def _first(generator: Iterator[Any]) -> Iterator[Any]:
    for item in generator:
        yield item
        return


def samples_under_seed(name: str, generator: Callable[..., Iterator[Any]], **kwargs: Any) -> list[Any]:
    """Return the values that `generator` yields. Torch's random state is seeded by `name`, and restored afterwards."""
    with seeded(zlib.crc32(name.encode())):
        return list(generator(**kwargs))
