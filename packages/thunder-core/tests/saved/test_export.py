# SPDX-License-Identifier: Apache-2.0
"""`thunder.export`: a file that `thunder.load` runs without the source of the model, and what no file can hold."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch

import thunder
from thunder.core.errors import ThunderError
from thunder.frontend.exporting import ExportError

ROOT = Path(__file__).resolve().parents[4]


class Net(torch.nn.Module):
    """A model with parameters, a buffer, and a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.norm, self.out = torch.nn.Embedding(10, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3)
        self.register_buffer("shift", torch.arange(3.0).view(1, 3).t().contiguous().t())
        self.scale = 2.5

    def forward(self, x: torch.Tensor, flag: bool = False) -> Any:
        """Return logits, or a dict with them."""
        y = self.out(self.norm(self.emb(x))) * self.scale + self.shift
        return {"y": y, "mean": y.mean()} if flag else y


@pytest.fixture
def exported(tmp_path: Path) -> tuple[Net, torch.Tensor, Path]:
    """A model, an example, and its file."""
    model, x = Net().eval(), torch.randint(0, 10, (2, 5))
    path = tmp_path / "model.thunder"
    thunder.export(model, x, dynamic_shapes={"x": [0, 1]}).add(x, flag=True).save(path)
    return model, x, path


def test_loaded_program_computes_the_same(exported: Any) -> None:
    """Each specialization, and other sizes of dynamic dimensions."""
    model, x, path = exported
    loaded = thunder.load(path)
    assert torch.equal(loaded(x), model(x)) and not loaded(x).requires_grad
    assert torch.equal(loaded(x, flag=True)["y"], model(x, flag=True)["y"])
    other = torch.randint(0, 10, (7, 3))
    assert torch.equal(loaded(other), model(other))
    with pytest.raises(ThunderError, match="was not exported for these arguments"):
        loaded(x.float())
    with pytest.raises(ThunderError, match=r"the structure of the arguments|arguments were given"):
        loaded(x, x, x)


def test_weights_beside(exported: Any, tmp_path: Path) -> None:
    """The parameters may be in a file of their own."""
    model, x, path = exported
    thunder.export(model, x).save(tmp_path / "small.thunder", weights="weights.safetensors")
    assert (tmp_path / "small.thunder").stat().st_size < path.stat().st_size + 4096
    assert torch.equal(thunder.load(tmp_path / "small.thunder")(x), model(x))


def test_another_process_without_the_source(exported: Any, tmp_path: Path) -> None:
    """Only torch and the runtime are loaded."""
    model, x, path = exported
    source = f"""
import sys, torch, thunder
found = thunder.load({str(path)!r})(torch.tensor({x.tolist()}))
heavy = tuple("thunder." + name for name in ("capture", "passes", "torch", "executors", "frontend", "plugins"))
assert not [n for n in sys.modules if n.startswith(heavy)]
print(found.flatten().tolist())
"""
    done = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == model(x).flatten().tolist()


class Stores(torch.nn.Module):
    """A model that changes an object."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Store the input."""
        self.last = x * 2
        return x


class Result:
    """A class of the user."""

    def __init__(self, y: Any):
        self.y = y


def branching(x: torch.Tensor) -> torch.Tensor:
    """Branch on a value."""
    return x.sin() if x.sum() > 0 else x.cos()


@pytest.mark.parametrize(
    "model, message",
    [(Stores(), "objects that it changes"), (lambda x: Result(x + 1), "Result"), (branching, "values of tensors")],
    ids=["effects", "class", "branch"],
)
def test_what_no_file_can_hold(model: Any, message: str) -> None:
    """The error names it."""
    with pytest.raises(ExportError, match=message):
        thunder.export(model, torch.ones(3))


def test_dynamic_shapes_name_arguments() -> None:
    """A name that is no argument is an error."""
    with pytest.raises(ExportError, match="no argument"):
        thunder.export(torch.sin, torch.ones(3), dynamic_shapes={"nothing": [0]})


def test_a_file_of_other_versions(exported: Any, tmp_path: Path) -> None:
    """A file runs with other versions if they have what it needs; otherwise the error names both."""
    _, _, path = exported
    own, others = f'\\"torch\\": \\"{torch.__version__}'.encode(), b'\\"torch\\": \\"0.1'
    assert path.read_bytes().count(own) == 1
    data = path.read_bytes().replace(own, others + b"." * (len(own) - len(others)))
    (tmp_path / "other.thunder").write_bytes(data)
    x = torch.randint(0, 10, (2, 5))
    assert torch.equal(thunder.load(tmp_path / "other.thunder")(x), thunder.load(path)(x))
    data = data.replace(b"torch.nn.functional.layer_norm(", b"torch.nn.functional.older_norm(")
    (tmp_path / "older.thunder").write_bytes(data)
    with pytest.raises(
        ThunderError, match=r"older_norm. It was exported with Python .* and torch 0\.1.*export it anew"
    ):
        thunder.load(tmp_path / "older.thunder")


def test_damaged_files(exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors say what is wrong. With a key, files without a signature are refused."""
    model, x, path = exported
    (tmp_path / "short.thunder").write_bytes(path.read_bytes()[:100])
    with pytest.raises(ThunderError, match="damaged"):
        thunder.load(tmp_path / "short.thunder")
    hostile = path.read_bytes().replace(b"torch.nn.functional.linear(", b"torch.ops.load_library____(")
    (tmp_path / "hostile.thunder").write_bytes(hostile)
    with pytest.raises(ThunderError, match="load_library"):
        thunder.load(tmp_path / "hostile.thunder")
    monkeypatch.setenv("THUNDER_CACHE_KEY", "secret")
    with pytest.raises(ThunderError, match="not signed"):
        thunder.load(path)
    thunder.export(model, x).save(tmp_path / "signed.thunder")
    assert torch.equal(thunder.load(tmp_path / "signed.thunder")(x), model(x))


def test_server_of_the_docs(tmp_path: Path) -> None:
    """The server of docs/saved.md answers requests of several shapes from several threads."""
    page = (ROOT / "docs" / "saved.md").read_text()
    export, serve = re.findall(r"```.*python\n(# (?:export|serve)\.py\n[\s\S]*?)```", page)
    namespace: dict[str, Any] = {}
    monkeypatched = export.replace("model.thunder", str(tmp_path / "model.thunder"))
    exec(monkeypatched, namespace)
    served: dict[str, Any] = {"__name__": "serve"}
    exec(serve.replace("model.thunder", str(tmp_path / "model.thunder")), served)
    server = served["make_server"](0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    answers: dict[int, Any] = {}

    def ask(n: int) -> None:
        rows = torch.linspace(-1, 1, 4 * n).view(n, 4)
        data = json.dumps(rows.tolist()).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}", data) as answer:
            answers[n] = torch.tensor(json.load(answer)), rows

    try:
        threads = [threading.Thread(target=ask, args=(n,)) for n in (1, 2, 3, 5, 8, 13)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        server.shutdown()
        server.server_close()
    assert sorted(answers) == [1, 2, 3, 5, 8, 13]
    for found, rows in answers.values():
        torch.testing.assert_close(found, namespace["model"](rows).detach())
