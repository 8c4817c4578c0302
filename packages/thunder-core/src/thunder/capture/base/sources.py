# SPDX-License-Identifier: Apache-2.0
"""Sources: paths by which a prologue finds a value again, from a root that outlives the call.

A path begins at an argument or at a root (the jitted callable, a class, a Python module). Each further source is one
step from its parent: an attribute, an item or a call. A source can `read` its value from its parent's value, return the
Python `code` that a prologue prints for this step, and `describe` the value for messages. Steps reference no user
object, so a cached program keeps no user object alive. Equal steps from the same source are the same object, so
sources are compared by identity.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from thunder.runtime.arrays import array_tensor
from thunder.runtime.guards import referent

__all__ = [
    "Argument",
    "Attr",
    "BaseItem",
    "Call",
    "Cell",
    "CellContents",
    "ContextValue",
    "DictKeys",
    "DictValues",
    "Global",
    "IsSubclass",
    "Item",
    "Length",
    "ModuleVariable",
    "Query",
    "Referent",
    "Root",
    "Scope",
    "Size",
    "Source",
    "Variables",
    "is_literal",
]

# The dicts of a torch.nn.Module whose entries messages show as attributes, e.g. `m.weight`.
_TABLES = ("_parameters", "_buffers", "_modules")

S = TypeVar("S", bound="Source")


def is_literal(x: Any) -> bool:
    """Check whether the repr of a value can be printed in a prologue."""
    return type(x) in (str, int, bool, bytes, type(None)) or (type(x) is tuple and all(is_literal(i) for i in x))


class Source:
    """One step of a path.

    Immutable except for `label`, from which an input made from the value takes its name.
    """

    __slots__ = ("_children", "_description", "label", "parent")

    label: str
    operands: tuple[Source, ...] = ()  # other sources whose values the step needs, in addition to its parent

    def __init__(self, parent: Source | None, label: str = ""):
        self.parent = parent
        inherited = parent.label if parent is not None else ""
        self.label = f"{inherited}_{label}" if inherited and label else inherited or label
        self._children: dict[Any, Source] = {}
        self._description: str | None = None

    # -- what subclasses define ---------------------------------------------------------------------------------------
    def read(self, start: Any, *operands: Any) -> Any:
        """Return the value, given the values of the parent and of the operands."""
        raise NotImplementedError

    def code(self, start: str, *operands: str) -> str:
        """Return a Python expression for the value, given the expressions of the parent and of the operands."""
        raise NotImplementedError

    def describe(self) -> str:
        """Return the value's name in messages: `m.weight`, not `m.__dict__['_parameters']['weight']`."""
        return self.code(str(self.parent), *map(str, self.operands))

    @property
    def helpers(self) -> dict[str, Any]:
        """Names used in `code` that are not built-ins of Python."""
        return {}

    # -- steps from here ----------------------------------------------------------------------------------------------
    def to(self, step: type[S], *operands: Any) -> S:
        """Return the source that is one `step` from this source; `operands` are the arguments of the step."""
        key = (step, *operands)
        found = self._children.get(key)
        if found is None:
            found = self._children[key] = step(self, *operands)
        return found  # type: ignore[return-value]

    def attr(self, name: str) -> Source:
        """Return the source of an attribute."""
        return self.variables if name == "__dict__" else self.to(Attr, name)

    def item(self, key: Any) -> Item:
        """Return the source of the item of a dict, list or tuple."""
        return self.to(Item, key)

    @property
    def variables(self) -> Variables:
        """The source of the value's `__dict__`."""
        return self.to(Variables)

    def variable(self, name: str) -> Item:
        """Return the source of an entry in the value's `__dict__`."""
        return self.to(Variables).to(Item, name)

    def call(self, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None, label: str = "") -> Call:
        """Return the source of the result of calling the value. Arguments are literals, tuples and sources."""
        made = Call(self, args, tuple((kwargs or {}).items()), label)
        # The key is the text of the call, because 1, 1.0 and True are equal.
        key = Call, made.code("", *[str(id(x)) for x in made.operands])
        return self._children.setdefault(key, made)  # type: ignore[return-value]

    # -- the path -----------------------------------------------------------------------------------------------------
    @property
    def root(self) -> Source:
        """The first source of the path: an `Argument` or a `Root`."""
        source = self
        while source.parent is not None:
            source = source.parent
        return source

    def find(self, arguments: Callable[[Argument], Any] | None = None) -> Any:
        """Find the current value; `arguments` maps `Argument` sources to their values."""
        assert self.parent is not None
        start = self.parent.find(arguments)
        return self.read(start, *[x.find(arguments) for x in self.operands])

    def __str__(self) -> str:
        if self._description is None:
            self._description = self.describe()
        return self._description


# -- roots ------------------------------------------------------------------------------------------------------------
class Root(Source):
    """An object that outlives the call: the jitted callable, a class, a module."""

    __slots__ = ("title", "value")

    def __init__(self, value: Any, label: str = "", *, title: str = ""):
        super().__init__(None, label)
        self.value = value
        self.title = title

    def find(self, arguments: Callable[[Argument], Any] | None = None) -> Any:
        """Return the object itself."""
        return self.value

    def describe(self) -> str:
        """Return its title."""
        return self.title or self.label


class Argument(Source):
    """A leaf of the call's arguments, by its index; -1 is all of `args`, -2 all of `kwargs`."""

    __slots__ = ("index", "name")

    def __init__(self, index: int, name: str):
        super().__init__(None, name if index >= 0 else "")
        self.index = index
        self.name = name

    def find(self, arguments: Callable[[Argument], Any] | None = None) -> Any:
        """Return the argument's value from `arguments`."""
        assert arguments is not None
        return arguments(self)

    def describe(self) -> str:
        """Return the parameter's name."""
        return self.name


# -- attributes and items ---------------------------------------------------------------------------------------------
class Attr(Source):
    """An attribute."""

    __slots__ = ("name",)

    # Steps that are left out of the names of inputs.
    _UNNAMED = frozenset({"__self__", "__func__", "__mro__"})

    def __init__(self, parent: Source, name: str):
        super().__init__(parent, "" if name in self._UNNAMED else name)
        self.name = name

    def read(self, start: Any, *operands: Any) -> Any:
        """Return the attribute."""
        return getattr(start, self.name)

    def code(self, start: str, *operands: str) -> str:
        """Return `start.name`."""
        if not self.name.isidentifier() or keyword.iskeyword(self.name):
            return f"getattr({start}, {self.name!r})"
        return f"{start}.{self.name}"


class Variables(Source):
    """The `__dict__` of an object, a class or a module."""

    __slots__ = ()

    def read(self, start: Any, *operands: Any) -> Any:
        """Return the `__dict__`."""
        return start.__dict__

    def code(self, start: str, *operands: str) -> str:
        """Return `start.__dict__`."""
        return f"{start}.__dict__"


class Item(Source):
    """The item of a dict, list or tuple; `key` is a literal."""

    __slots__ = ("key",)

    def __init__(self, parent: Source, key: Any):
        super().__init__(parent, "" if key in _TABLES else str(key))
        self.key = key

    def read(self, start: Any, *operands: Any) -> Any:
        """Return the item."""
        return start[self.key]

    def code(self, start: str, *operands: str) -> str:
        """Return `start[key]`."""
        return f"{start}[{self.key!r}]"

    def describe(self) -> str:
        """Show an entry of a `__dict__` or of a module's table as an attribute, and any other item as an item."""
        owner = self.parent
        if isinstance(self.key, str) and self.key.replace("_", "a").isalnum():
            if isinstance(owner, Item) and owner.key in _TABLES:
                owner = owner.parent
            if isinstance(owner, Variables):
                return f"{owner.parent}.{self.key}"
        return self.code(str(owner))


class BaseItem(Source):
    """The item of an instance of a container's subclass, read without running the subclass's code."""

    __slots__ = ("base", "key")

    def __init__(self, parent: Source, base: Any, key: Any):
        super().__init__(parent, str(key))
        self.base = base
        self.key = key

    def read(self, start: Any, *operands: Any) -> Any:
        """Return the item."""
        return self.base.__getitem__(start, self.key)

    def code(self, start: str, *operands: str) -> str:
        """Return `dict.__getitem__(start, key)`."""
        return f"{self.base.__name__}.__getitem__({start}, {self.key!r})"

    @property
    def helpers(self) -> dict[str, Any]:
        """The base class, unless it is a built-in."""
        return {} if self.base.__module__ == "builtins" else {self.base.__name__: self.base}


class DictKeys(Source):
    """The keys of a dict in order, for keys that have no literal."""

    __slots__ = ()

    def read(self, start: Any, *operands: Any) -> Any:
        """Return the keys."""
        return tuple(dict.keys(start))

    def code(self, start: str, *operands: str) -> str:
        """Return `tuple(dict.keys(start))`."""
        return f"tuple(dict.keys({start}))"


class DictValues(Source):
    """The values of a dict in order, which find a value by the position of its key if the key has no literal."""

    __slots__ = ()

    def read(self, start: Any, *operands: Any) -> Any:
        """Return the values."""
        return tuple(dict.values(start))

    def code(self, start: str, *operands: str) -> str:
        """Return `tuple(dict.values(start))`."""
        return f"tuple(dict.values({start}))"


class Length(Source):
    """The number of items."""

    __slots__ = ()

    def __init__(self, parent: Source):
        super().__init__(parent, "length")

    def read(self, start: Any, *operands: Any) -> Any:
        """Return the number."""
        return len(start)

    def code(self, start: str, *operands: str) -> str:
        """Return `len(start)`."""
        return f"len({start})"


# -- variables of functions -------------------------------------------------------------------------------------------
class Scope(Source):
    """The globals of a module, found through the module (`__dict__`) or one of its functions (`__globals__`)."""

    __slots__ = ("attribute", "title")

    def __init__(self, parent: Source, attribute: str, title: str):
        super().__init__(parent)
        self.label = ""
        self.attribute = attribute
        self.title = title

    def read(self, start: Any, *operands: Any) -> Any:
        """Return the dict of globals."""
        return getattr(start, self.attribute)

    def code(self, start: str, *operands: str) -> str:
        """Return `start.__dict__` or `start.__globals__`."""
        return f"{start}.{self.attribute}"

    def describe(self) -> str:
        """Return the module's name."""
        return self.title


class Global(Source):
    """A global variable."""

    __slots__ = ("name",)

    def __init__(self, parent: Source, name: str):
        super().__init__(parent, name)
        self.name = name

    def read(self, start: Any, *operands: Any) -> Any:
        """Return its value."""
        return start[self.name]

    def code(self, start: str, *operands: str) -> str:
        """Return `start['name']`."""
        return f"{start}[{self.name!r}]"

    def describe(self) -> str:
        """Return the variable's name."""
        return self.name


class ModuleVariable(Item):
    """A global variable of a module that is read as an attribute of the module."""

    __slots__ = ()

    def describe(self) -> str:
        """Show the variable as an attribute."""
        return f"{self.parent}.{self.key}"


class Cell(Source):
    """A cell of a function's closure."""

    __slots__ = ("index",)

    def __init__(self, parent: Source, index: int):
        super().__init__(parent)
        self.index = index

    def read(self, start: Any, *operands: Any) -> Any:
        """Return the cell."""
        return start.__closure__[self.index]

    def code(self, start: str, *operands: str) -> str:
        """Return `start.__closure__[index]`."""
        return f"{start}.__closure__[{self.index}]"


class CellContents(Source):
    """The variable in a closure's cell."""

    __slots__ = ("name",)

    def __init__(self, parent: Source, name: str):
        super().__init__(parent)
        self.label = self.name = name

    def read(self, start: Any, *operands: Any) -> Any:
        """Return its value."""
        return start.cell_contents

    def code(self, start: str, *operands: str) -> str:
        """Return `start.cell_contents`."""
        return f"{start}.cell_contents"

    def describe(self) -> str:
        """Return the variable's name."""
        return self.name


class ContextValue(Source):
    """The value of a context variable, or None if the variable has no value."""

    __slots__ = ()

    def read(self, start: Any, *operands: Any) -> Any:
        """Return the value."""
        return start.get(None)

    def code(self, start: str, *operands: str) -> str:
        """Return `start.get(None)`."""
        return f"{start}.get(None)"


class Referent(Source):
    """The object of a weak reference, or None if it no longer exists."""

    __slots__ = ()

    def read(self, start: Any, *operands: Any) -> Any:
        """Return the object."""
        return referent(start)

    def code(self, start: str, *operands: str) -> str:
        """Return a call of a function that follows the reference."""
        return f"referent({start})"

    def describe(self) -> str:
        """Show a call of the reference."""
        return f"{self.parent}()"

    @property
    def helpers(self) -> dict[str, Any]:
        """The function that follows the reference."""
        return {"referent": referent}


# -- computed values --------------------------------------------------------------------------------------------------
class Call(Source):
    """The result of calling a function. The arguments are literals, tuples of arguments, or other sources."""

    __slots__ = ("args", "kwargs", "operands")

    def __init__(self, parent: Source, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...], label: str = ""):
        super().__init__(parent, label)
        self.args = args
        self.kwargs = kwargs
        self.operands = tuple(_sources_in((args, tuple(value for _, value in kwargs))))

    def read(self, start: Any, *operands: Any) -> Any:
        """Call the function."""
        values = iter(operands)
        args = [_fill(x, values) for x in self.args]
        return start(*args, **{name: _fill(x, values) for name, x in self.kwargs})

    def code(self, start: str, *operands: str) -> str:
        """Return `start(arguments)`."""
        texts = iter(operands)
        listed = [_write(x, texts) for x in self.args]
        listed += [f"{name}={_write(x, texts)}" for name, x in self.kwargs]
        return f"{start}({', '.join(listed)})"


def _sources_in(x: Any) -> Iterator[Source]:
    if isinstance(x, Source):
        yield x
    elif type(x) is tuple:
        for i in x:
            yield from _sources_in(i)


def _fill(x: Any, operands: Iterator[Any]) -> Any:
    """Return an argument in which each source is replaced with its value."""
    if isinstance(x, Source):
        return next(operands)
    return tuple([_fill(i, operands) for i in x]) if type(x) is tuple else x


def _write(x: Any, operands: Iterator[str]) -> str:
    """Return Python code for an argument."""
    if isinstance(x, Source):
        return next(operands)
    if is_literal(x):
        return repr(x)
    if type(x) is tuple:
        return f"({''.join(f'{_write(i, operands)}, ' for i in x)})"
    return f"float('{x}')" if type(x) is float and not math.isfinite(x) else repr(x)


class Size(Source):
    """The size of a tensor along one dimension."""

    __slots__ = ("dim",)

    def __init__(self, parent: Source, dim: int):
        super().__init__(parent)
        self.dim = dim

    def read(self, start: Any, *operands: Any) -> Any:
        """Return the size."""
        return start.shape[self.dim]

    def code(self, start: str, *operands: str) -> str:
        """Return `start.shape[dim]`."""
        return f"{start}.shape[{self.dim}]"


class IsSubclass(Source):
    """Whether a class is a subclass of another one, perhaps of an abstract base class."""

    __slots__ = ("operands",)

    def __init__(self, parent: Source, base: Source):
        super().__init__(parent)
        self.operands = (base,)

    def read(self, start: Any, *operands: Any) -> Any:
        """Return the answer."""
        return issubclass(start, operands[0])

    def code(self, start: str, *operands: str) -> str:
        """Return `issubclass(start, base)`."""
        return f"issubclass({start}, {operands[0]})"


class Query(Source):
    """The result of a method without arguments."""

    __slots__ = ("name",)

    def __init__(self, parent: Source, name: str):
        super().__init__(parent, name)
        self.name = name

    def read(self, start: Any, *operands: Any) -> Any:
        """Call the method."""
        return getattr(start, self.name)()

    def code(self, start: str, *operands: str) -> str:
        """Return `start.name()`."""
        return f"{start}.{self.name}()"


class ArrayTensor(Source):
    """The tensor that shares memory with a NumPy array."""

    __slots__ = ()

    def read(self, start: Any, *operands: Any) -> Any:
        """Return the tensor."""
        return array_tensor(start)

    def code(self, start: str, *operands: str) -> str:
        """Return a call of a function that checks the array."""
        return f"array_tensor({start})"

    def describe(self) -> str:
        """Return the array's name."""
        return str(self.parent)

    @property
    def helpers(self) -> dict[str, Any]:
        """The function that checks the array."""
        return {"array_tensor": array_tensor}
