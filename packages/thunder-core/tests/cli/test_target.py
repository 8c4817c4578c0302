# SPDX-License-Identifier: Apache-2.0
"""`FILE.py:NAME` and the inputs of a call."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from thunder.cli.target import BadTarget, load_target


def test_inputs_beside_the_program(programs: str) -> None:
    """`NAME_inputs` comes before `example_inputs`; a class of modules is instantiated; nothing is needed by some."""
    net = load_target(f"{programs}:MLP")
    assert isinstance(net.fn, torch.nn.Module) and [x.shape for x in net.args] == [(3, 4)] and not net.kwargs
    assert load_target(f"{programs}:f").kwargs["scale"] == 3.0
    again = load_target(f"{programs}:MLP")
    assert torch.equal(net.args[0], again.args[0])  # the seed
    assert not torch.equal(net.args[0], load_target(f"{programs}:MLP", seed=1).args[0])


def test_a_single_argument_and_no_argument(tmp_path: Path) -> None:
    """Values need no function, and a program may need no inputs."""
    (tmp_path / "a_program.py").write_text("import torch\nf_inputs = torch.ones(2)\ndef f(x): ...\ndef g(): ...\n")
    assert torch.equal(load_target(f"{tmp_path / 'a_program.py'}:f").args[0], torch.ones(2))
    found = load_target(f"{tmp_path / 'a_program.py'}:g")
    assert found.args == () and found.kwargs == {}


def test_modules_of_packages() -> None:
    """Installed modules, too."""
    found = load_target("torch.nn.functional:relu", ["f32[2]"])
    assert found.fn is torch.nn.functional.relu and found.args[0].shape == (2,)


def test_descriptions(programs: str) -> None:
    """Tensors by dtype, shape, device, `grad` and `below`; literals; names."""
    texts = [
        "f32[2, 3] grad",
        "i64[100] below 7",
        "bfloat16[]",
        "b8[4]",
        "2.5",
        "mode='sum'",
        "m=c64[2]",
        "n=(1, None)",
    ]
    found = load_target(f"{programs}:anything", texts)
    a, b, c, d, e = found.args
    assert a.shape == (2, 3) and a.requires_grad and a.is_leaf
    assert b.dtype == torch.int64 and 2 < int(b.max()) < 7 and int(b.min()) >= 0
    assert (c.dtype, c.shape, d.dtype, e) == (torch.bfloat16, (), torch.bool, 2.5)
    assert found.kwargs["mode"] == "sum" and found.kwargs["m"].dtype == torch.complex64
    assert found.kwargs["n"] == (1, None)


BAD = {
    "PROGRAMS": "names no program: write FILE.py:NAME",
    "missing.py:f": "there is no file 'missing.py'",
    "no_such_module_x:f": "cannot be imported",
    "PROGRAMS:g": "has no 'g'. It has MLP, Sized, f, f_inputs",
    "PROGRAMS:Sized": "the class Sized needs the arguments n: write a line such as `model = Sized",
    "PROGRAMS:number": "is int, not a function or module",
}


@pytest.mark.parametrize("target", BAD)
def test_senseless_targets(programs: str, target: str) -> None:
    """The message says what to write."""
    with pytest.raises(BadTarget) as raised:
        load_target(target.replace("PROGRAMS", programs))
    assert BAD[target] in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f33[2]", "'f33' is no dtype. Write one of"),
        ("f32[2] twice below", "after the type come a device, `grad` and `below N`, not 'below'"),
        ("x y", "describes no input: write a tensor such as f32"),
        ("f32[2] moon", "moon"),
    ],
)
def test_senseless_inputs(programs: str, text: str, message: str) -> None:
    """Unknown dtypes, words and devices."""
    with pytest.raises(BadTarget) as raised:
        load_target(f"{programs}:f", [text])
    assert message in str(raised.value)


def test_inputs_that_are_missing(tmp_path: Path) -> None:
    """The message names both ways to give them."""
    (tmp_path / "a_program.py").write_text("def f(x, *, y, z=1): ...\n")
    with pytest.raises(BadTarget, match=r"f needs the arguments x, y: define `example_inputs` in .*--input 'f32"):
        load_target(f"{tmp_path / 'a_program.py'}:f")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["f32[2]"], "f(x, y, z) does not take 1 argument: missing a required"),
        (["f32[2]", "q=1", "y=2"], "f(x, y, z) does not take 1 argument, q, y: got an unexpected keyword argument 'q'"),
        (["1", "2", "y=2"], "f(x, y, z) does not take 2 arguments, y: too many positional arguments"),
    ],
)
def test_inputs_that_do_not_fit(tmp_path: Path, inputs: list[str], message: str) -> None:
    """The message names the arguments of the program and those that were given."""
    (tmp_path / "a_program.py").write_text("def f(x, *, y, z=1): ...\n")
    with pytest.raises(BadTarget) as raised:
        load_target(f"{tmp_path / 'a_program.py'}:f", inputs)
    assert message in str(raised.value)
