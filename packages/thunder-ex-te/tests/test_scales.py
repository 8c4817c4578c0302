# SPDX-License-Identifier: Apache-2.0
"""Scales that follow from earlier steps: where they are kept, when they move on, and who sees them."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import thunder
from thunder.extend import ThunderError

NAMES = ("t_weight.input", "t_weight.weight", "t_weight.grad")


class Scaled(torch.nn.Linear):
    """A layer that pickle finds."""


@pytest.fixture
def layer(device: str) -> torch.nn.Linear:
    """A layer that learns nothing."""
    torch.manual_seed(0)
    return Scaled(32, 16, bias=False, device=device)


def _step(f: Any, layer: Any, size: float) -> None:
    x = torch.full((16, 32), size, device=layer.weight.device)
    f(x).backward(torch.full((16, 16), 4 * size, device=x.device))


def _scales(f: Any) -> list[float]:
    return [float(f._extra_state["te"][name]["scale"]) for name in NAMES]


def test_they_move_on_with_each_step(layer: Any, recipes: Any) -> None:
    """Forward's after forward and the gradient's after backward, by the largest value of the history."""
    f = thunder.jit(layer, te_recipe=recipes.DelayedScaling(amax_history_len=2))
    of_weight = 448 / float(layer.weight.detach().abs().max())
    _step(f, layer, 2.0)
    assert _scales(f) == pytest.approx([448 / 2, of_weight, 57344 / 8])
    for traces in (thunder.last_traces(f), thunder.last_backward_traces(f)):
        assert str(traces[-1]).count("te_update_scales((") == 1
    _step(f, layer, 1.0)
    assert _scales(f)[::2] == pytest.approx([448 / 2, 57344 / 8])
    _step(f, layer, 1.0)
    assert _scales(f)[::2] == pytest.approx([448, 57344 / 4])


def test_the_last_value_alone(layer: Any, recipes: Any) -> None:
    """And a margin."""
    f = thunder.jit(layer, te_recipe=recipes.DelayedScaling(amax_compute_algo="most_recent", margin=1))
    _step(f, layer, 2.0)
    _step(f, layer, 1.0)
    assert _scales(f)[::2] == pytest.approx([448 / 2, 57344 / 8])


def test_a_program_with_its_own_gradient(layer: Any, recipes: Any) -> None:
    """Forward and backward are one program, which ends with all new scales, of both types."""

    def loss(x: Any, w: Any) -> Any:
        return (torch.nn.functional.linear(x, w) * 4).sum()

    f = thunder.value_and_grad(thunder.jit(loss, te_recipe=recipes.DelayedScaling(amax_history_len=2)), argnums=1)
    x = torch.full((16, 32), 2.0, device=layer.weight.device)
    for _ in range(2):
        f(x, layer.weight.detach())
    found = {name.rpartition(".")[2]: float(kept["scale"]) for name, kept in f._extra_state["te"].items()}
    of_weight = 448 / float(layer.weight.detach().abs().max())
    assert found == pytest.approx({"input": 448 / 2, "weight": of_weight, "grad": 57344 / 4})


def test_without_gradients_they_stay(layer: Any, recipes: Any) -> None:
    """Evaluation uses the scales of training, and leaves no trace in them."""
    f = thunder.jit(layer, te_recipe=recipes.DelayedScaling())
    _step(f, layer, 2.0)
    before = copy.deepcopy(f._extra_state)
    with torch.no_grad():
        f(torch.full((16, 32), 100.0, device=layer.weight.device))
    for name in NAMES:
        for key, x in before["te"][name].items():
            assert torch.equal(f._extra_state["te"][name][key], x)
    assert "note=False" in str(thunder.last_traces(f)[-1])


def test_they_are_nobody_elses(layer: Any, recipes: Any) -> None:
    """The model's state has its parameters in it, and nothing else."""
    f = thunder.jit(layer, te_recipe=recipes.DelayedScaling())
    _step(f, layer, 2.0)
    assert list(f.state_dict()) == ["weight"] and not list(f.buffers())
    assert not hasattr(layer, "_extra_state")


def test_programs_of_one_function_share_them(layer: Any, recipes: Any) -> None:
    """Another batch size is another program, and the same layer."""
    f = thunder.jit(layer, te_recipe=recipes.DelayedScaling(amax_history_len=4))
    _step(f, layer, 2.0)
    x = torch.full((32, 32), 8.0, device=layer.weight.device)
    f(x).sum().backward()
    assert thunder.cache_misses(f) == 2 and _scales(f)[0] == pytest.approx(448 / 8)


def test_copies_and_pickles_keep_them(layer: Any, recipes: Any) -> None:
    """A copy goes on from where it was made, by itself."""
    recipe = recipes.DelayedScaling(amax_history_len=4)
    f = thunder.jit(layer, te_recipe=recipe)
    _step(f, layer, 2.0)
    for again in (copy.deepcopy(f), pickle.loads(pickle.dumps(f))):
        assert _scales(again) == _scales(f)
        _step(again, again, 8.0)
        assert _scales(again)[0] == pytest.approx(448 / 8) and _scales(f)[0] == pytest.approx(448 / 2)


def test_saving_and_loading(layer: Any, recipes: Any) -> None:
    """What is saved can be given to another run, before its first call or in between."""
    f = thunder.jit(layer, te_recipe=recipes.DelayedScaling(amax_history_len=4))
    _step(f, layer, 2.0)
    file = io.BytesIO()
    torch.save(f._extra_state, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    fresh = thunder.jit(copy.deepcopy(layer), te_recipe=recipes.DelayedScaling(amax_history_len=8))
    fresh._extra_state = saved
    _step(fresh, fresh, 1.0)
    assert _scales(fresh) == pytest.approx(_scales(f))
    running = thunder.jit(copy.deepcopy(layer), te_recipe=recipes.DelayedScaling(amax_history_len=4))
    _step(running, running, 16.0)
    running._extra_state = saved
    assert _scales(running) == _scales(f)
    _step(running, running, 1.0)  # its programs see what was loaded
    assert _scales(running) == pytest.approx(_scales(f))
    _step(f, layer, 1.0)  # and what was loaded is theirs alone
    assert _scales(running)[0] == pytest.approx(_scales(f)[0])


def test_weights_that_are_computed(device: str, recipes: Any) -> None:
    """Parts of one parameter have scales of their own, which training and evaluation find though programs differ."""
    w = torch.nn.Parameter(torch.randn(2, 32, 32, device=device))

    class Stacked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = w

        def forward(self, x: Any) -> Any:
            x = torch.nn.functional.linear(x, self.w[0])
            x = torch.nn.functional.dropout(x * 16, 0.5, self.training)
            return torch.nn.functional.linear(x, self.w[1].t().contiguous())

    f = thunder.jit(Stacked(), te_recipe=recipes.DelayedScaling(amax_history_len=4))
    x = torch.full((16, 32), 2.0, device=device)
    f(x).sum().backward()
    names = set(f._extra_state["te"])
    assert len(names) == 6 and all(name.startswith("t_w.") for name in names)
    f.eval()
    with torch.no_grad():
        f(x)
        f(torch.cat([x, x]))
    f.train()
    f(torch.cat([x, x])).sum().backward()
    assert set(f._extra_state["te"]) == names


@pytest.mark.parametrize(
    "wrong",
    [[1], {"t_weight.input": 1}, {"t_weight.grad": {"scale": torch.ones(2)}}, {"t_weight.weight": {"scale": 1.0}}],
)
def test_state_of_another_kind(wrong: Any, layer: Any, recipes: Any) -> None:
    """Is an error that says what is wanted."""
    f = thunder.jit(layer, te_recipe=recipes.DelayedScaling())
    f._extra_state = {"te": wrong}
    with pytest.raises(ThunderError, match=r"_extra_state\['te'\]\['t_weight\.\w+'\] is invalid: DelayedScaling needs"):
        _step(f, layer, 1.0)


def test_checkpointed_layers_count_once(layer: Any, recipes: Any) -> None:
    """What is computed again in backward uses the scale that it had, and is no other step."""

    def run(x: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(lambda x: torch.relu(layer(x)), x, use_reentrant=False)

    f = thunder.jit(run, te_recipe=recipes.DelayedScaling(amax_history_len=4))
    x = torch.full((16, 32), 2.0, device=layer.weight.device, requires_grad=True)
    for _ in range(2):
        f(x).sum().backward()
    (name,) = [n for n in f._extra_state["te"] if n.endswith(".input")]
    history = f._extra_state["te"][name]["amax_history"].flatten().tolist()
    assert sorted(history) == [0.0, 0.0, 2.0, 2.0]
    assert float(f._extra_state["te"][name]["scale"]) == pytest.approx(448 / 2)
    assert "again=True" in str(thunder.last_backward_traces(f)[-1])


def test_a_group_takes_the_largest_value_of_all(layer: Any, recipes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where processes train together their scales are the same."""
    seen: list[Any] = []

    def all_reduce(x: torch.Tensor, op: Any, group: Any) -> None:
        seen.append(group)
        x.fill_(4.0)

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group=None: 2)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda group=None: "fake")
    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    f = thunder.jit(layer, te_recipe=recipes.DelayedScaling(), te_amax_reduction_group="these")
    _step(f, layer, 1.0)
    assert seen == ["these", "these"] and _scales(f) == pytest.approx([112, 112, 57344 / 4])
    f = thunder.jit(layer, te_recipe=recipes.DelayedScaling(reduce_amax=False))
    _step(f, layer, 1.0)
    assert len(seen) == 2


def test_processes_that_train_together(device: str, tmp_path: Path) -> None:
    """Two processes with inputs of different size have one scale: of a group that is given, of all, or of none."""
    if device == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    script = [sys.executable, str(Path(__file__).with_name("scales_together.py")), device, str(tmp_path / "meeting")]
    processes = [
        subprocess.Popen([*script, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(2)
    ]
    try:
        said = [each.communicate(timeout=240)[0] for each in processes]
    finally:
        for each in processes:
            each.kill()
    for each, text in zip(processes, said):
        assert each.returncode == 0, text
