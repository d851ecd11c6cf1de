"""What `init_` changes and what it leaves: exactly one positive factor a drawn storage."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch_models as models
import torch_plain as plain
from torch import nn
from torch_measure import normal, reasons, rms, rows, tokens

import anyinit.torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def copies(model: nn.Module) -> dict[str, Any]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def idx() -> Any:
    return tokens(0, models.VOCAB, 4, models.LENGTH)


def test_a_second_call_changes_nothing() -> None:
    model = models.Tied(128, after=models.in_place)
    anyinit.torch.init_(model, idx())
    once = copies(model)
    anyinit.torch.init_(model, idx())
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, once[name], rtol=3e-4, atol=0)


def test_each_weight_is_multiplied_by_one_positive_number() -> None:
    model = models.Tied(128)
    before = copies(model)
    plan = anyinit.torch.init_(model, idx())
    for name, tensor in model.state_dict().items():
        factors = tensor.double() / before[name].double()
        if name in rows(plan):
            assert float(factors.min()) > 0
            assert float(factors.max() / factors.min()) == pytest.approx(1, rel=1e-5)
        else:
            assert torch.equal(tensor, before[name])


def test_the_plan_says_what_was_done() -> None:
    model = models.Tied(128)
    plan = anyinit.torch.init_(model, idx())
    for name, parameter in model.named_parameters():
        if name in rows(plan):
            assert rms(parameter) == pytest.approx(rows(plan)[name].sigma, rel=1e-4)


def test_a_tied_storage_is_written_once() -> None:
    model = models.Tied(64)
    counter = Counter()
    with counter:
        anyinit.torch.init_(model, idx())
    assert counter.writes[model.emb.weight.untyped_storage().data_ptr()] == 1


class Counter(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts in-place writes by storage."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.is_mutable and isinstance(args[0], torch.Tensor):
            place = args[0].untyped_storage()
            if not args[0].is_meta and args[0].device.type == "cpu":
                # Fake tensors have no address.
                with contextlib.suppress(RuntimeError):
                    self.writes[place.data_ptr()] = self.writes.get(place.data_ptr(), 0) + 1
        return func(*args, **(kwargs or {}))


def test_objects_and_gradients_flags_stay() -> None:
    model = models.Tied(64)
    objects = {name: id(parameter) for name, parameter in model.named_parameters()}
    pointers = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    anyinit.torch.init_(model, idx())
    for name, parameter in model.named_parameters():
        assert (id(parameter), parameter.data_ptr()) == (objects[name], pointers[name])
        assert parameter.requires_grad and parameter.grad is None and parameter.is_leaf


class Padded(nn.Module):
    def __init__(self, padding: int | None) -> None:
        super().__init__()
        self.emb = nn.Embedding(100, 64, padding_idx=padding)
        self.head = nn.Linear(64, 50)

    def forward(self, idx: Any) -> Any:
        return self.head(torch.relu(self.emb(idx)))


def test_padding_row_stays_zero_and_does_not_count() -> None:
    model = Padded(0)
    plan = anyinit.torch.init_(model, tokens(0, 100, 4, 8))
    assert float(model.emb.weight.detach()[0].abs().max()) == 0
    others = model.emb.weight.detach()[1:]
    assert float(others.square().mean().sqrt()) == pytest.approx(
        rows(plan)["emb.weight"].sigma, rel=1e-5
    )


class Priors(nn.Module):
    """A constant bias, a zero branch, and gains that are not one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(128, 128), nn.LayerNorm(128)
        self.zero, self.head = nn.Linear(128, 128), nn.Linear(128, 30)
        nn.init.constant_(self.head.bias, -4.6)
        nn.init.zeros_(self.zero.weight)
        nn.init.constant_(self.norm.weight, 1.5)

    def forward(self, x: Any) -> Any:
        x = x + self.zero(torch.tanh(self.inner(x)))
        return self.head(self.norm(x))


def test_constants_stay() -> None:
    model = Priors()
    before = copies(model)
    plan = anyinit.torch.init_(model, normal(0, 32, 128))
    for name in ("head.bias", "zero.weight", "norm.weight", "norm.bias"):
        assert torch.equal(model.state_dict()[name], before[name]), name
        assert reasons(plan)[name] == "CONSTANT"
    # The gain is part of what the head reads.
    assert rms(model.head.weight) == pytest.approx(1 / (1.5 * math.sqrt(128)), rel=0.02)


def test_frozen_parameters_stay_and_are_named() -> None:
    model = models.Tied(64)
    model.block.fc.weight.requires_grad_(False)
    before = copies(model)
    plan = anyinit.torch.init_(model, idx())
    assert torch.equal(model.block.fc.weight, before["block.fc.weight"])
    assert reasons(plan)["block.fc.weight"] == "FROZEN"
    assert "block.qkv.weight" in rows(plan)


def test_what_a_frozen_weight_produces_still_counts() -> None:
    model = plain.LoRA()
    with torch.no_grad():
        model.base.weight.mul_(10)
    plan = anyinit.torch.init_(model, normal(0, 64, plain.WIDTH))
    with torch.no_grad():
        output = model(normal(1, 64, plain.WIDTH))
    assert float(output.square().mean()) == pytest.approx(1, rel=0.2)
    assert "base.weight" not in rows(plan)


def test_only_and_skip() -> None:
    model = models.Tied(64)
    plan = anyinit.torch.plan(model, idx(), only="block.*", skip=["*.out.weight"])
    assert set(rows(plan)) == {"block.qkv.weight", "block.proj.weight", "block.fc.weight"}
    assert reasons(plan)["block.out.weight"] == "SKIPPED"
    # Any name of a tied table will do.
    assert set(rows(anyinit.torch.plan(model, idx(), only="head.weight"))) == {
        "emb.weight",
        "head.weight",
    }


def test_a_transposed_view_of_the_table_is_the_table() -> None:
    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = nn.Embedding(500, 128)
            self.out = nn.Parameter(self.emb.weight.detach().t())
            self.norm = nn.LayerNorm(128)

        def forward(self, idx: Any) -> Any:
            return self.norm(self.emb(idx)) @ self.out

    model = Transposed()
    assert model.out.data_ptr() == model.emb.weight.data_ptr()
    plan = anyinit.torch.init_(model, tokens(0, 500, 4, 8))
    (row,) = plan.weights
    assert {row.path, *row.aliases} == {"emb.weight", "out"}
    assert rms(model.emb.weight) == pytest.approx(128**-0.5, rel=0.01)


def test_the_model_is_as_before_after_a_failed_trace() -> None:
    class Broken(models.Tied):
        def forward(self, idx: Any) -> Any:
            self.scratch = super().forward(idx)
            self.kept.append(self.scratch)
            raise RuntimeError("no")

    model = Broken(64)
    model.kept = []
    before = copies(model)
    with pytest.raises(ValueError, match="rejects these inputs"):
        anyinit.torch.init_(model, idx())
    assert not hasattr(model, "scratch") and model.kept == []
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert type(tensor) is torch.Tensor


def test_attributes_set_in_forward_are_undone() -> None:
    class Caching(models.Tied):
        def forward(self, idx: Any) -> Any:
            self.cache = super().forward(idx)
            return self.cache

    model = Caching(64)
    anyinit.torch.init_(model, idx())
    assert not hasattr(model, "cache")


def test_random_state_and_settings_stay() -> None:
    import jax

    model = models.Tied(64)
    state, fast = torch.random.get_rng_state(), torch.backends.mha.get_fastpath_enabled()
    platforms = jax.config.jax_platforms
    anyinit.torch.init_(model, idx())
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    assert torch.backends.mha.get_fastpath_enabled() == fast
    assert jax.config.jax_platforms == platforms


def test_the_plan_is_made_of_shapes_alone() -> None:
    model = models.Tied(64)
    zeros = anyinit.torch.plan(model, torch.zeros(4, models.LENGTH, dtype=torch.int64))
    assert zeros.to_dict() == anyinit.torch.plan(model, idx()).to_dict()
    assert type(zeros).from_json(zeros.to_json()) == zeros


def test_without_torch_the_core_is_imported_alone() -> None:
    import subprocess
    import sys

    code = "import sys, anyinit; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
