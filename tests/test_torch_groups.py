"""Parameter groups: disjoint, complete, and the ratio of their rates kept."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch_models as models
import torch_plain as plain
from torch import nn
from torch_measure import tokens

import anyinit.torch

D = 64

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def idx() -> Any:
    return tokens(0, models.VOCAB, 4, models.LENGTH)


def scaled() -> tuple[Any, Any]:
    """Scheme D of the page: σ = 1, logits × 1/√d."""
    model = models.LM(D, "D")
    return model, anyinit.torch.init_(model, idx())


def untied() -> tuple[Any, Any]:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb, self.head = nn.Embedding(200, D), nn.Linear(D, 200, bias=False)
            self.norm, self.out = nn.LayerNorm(D), nn.Linear(D, 50, bias=False)

        def forward(self, idx: Any) -> Any:
            h = self.norm(self.emb(idx))
            return self.head(h) * 0.25, self.out(h) * 0.5

    model = Two()
    return model, anyinit.torch.init_(model, tokens(0, 200, 4, 8))


MODELS = {
    "scaled": scaled,
    "untied": untied,
    "tied": lambda: (model := models.Tied(D), anyinit.torch.init_(model, idx())),
    "shared_thrice": lambda: (
        model := plain.Seq2Seq(),
        anyinit.torch.init_(model, tokens(0, 1000, 4, 8), tokens(1, 1000, 4, 8)),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_disjoint_and_complete(name: str) -> None:
    model, plan = MODELS[name]()
    groups = anyinit.torch.param_groups(model, plan, lr=1e-3)
    listed = [id(parameter) for group in groups for parameter in group["params"]]
    assert len(listed) == len(set(listed))
    assert set(listed) == {id(parameter) for parameter in model.parameters()}
    torch.optim.AdamW(groups)  # which refuses a parameter in two groups


def test_rates_and_names() -> None:
    model, plan = scaled()
    rest, table = anyinit.torch.param_groups(model, plan, lr=3e-3, weight_decay=0.1)
    assert (rest["name"], table["name"]) == ("rest", "table")
    assert (rest["lr"], table["lr"]) == (3e-3, pytest.approx(3e-3 * math.sqrt(D)))
    assert [id(p) for p in table["params"]] == [id(model.E)]
    assert rest["weight_decay"] == table["weight_decay"] == 0.1


def test_several_multipliers() -> None:
    model, plan = untied()
    groups = {g["name"]: g for g in anyinit.torch.param_groups(model, plan, lr=1.0)}
    assert groups["scaled"]["params"][0] is model.head.weight
    assert groups["scaled"]["lr"] == pytest.approx(4)
    assert groups["scaled:2"]["params"][0] is model.out.weight
    assert groups["scaled:2"]["lr"] == pytest.approx(2)


def ratio(optimizer: Any) -> float:
    first, second = (float(group["lr"]) for group in optimizer.param_groups)
    return second / first


def step(model: Any, optimizer: Any) -> None:
    loss = nn.functional.cross_entropy(model(idx()).flatten(0, 1), idx().flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@pytest.mark.parametrize("kind", ["lambda", "cosine", "one_cycle"])
def test_schedulers_keep_the_ratio(kind: str) -> None:
    model, plan = scaled()
    groups = anyinit.torch.param_groups(model, plan, lr=3e-3)
    optimizer = torch.optim.AdamW(groups)
    schedules = torch.optim.lr_scheduler
    scheduler = {
        "lambda": lambda: schedules.LambdaLR(optimizer, lambda count: 1 / (1 + count)),
        "cosine": lambda: schedules.CosineAnnealingLR(optimizer, 20),
        "one_cycle": lambda: schedules.OneCycleLR(
            optimizer, max_lr=[group["lr"] for group in groups], total_steps=20
        ),
    }[kind]()
    for _ in range(6):
        step(model, optimizer)
        scheduler.step()
        assert ratio(optimizer) == pytest.approx(math.sqrt(D), rel=1e-6)


def test_fused_optimizer_and_state_round_trip() -> None:
    model, plan = scaled()
    optimizer = torch.optim.AdamW(anyinit.torch.param_groups(model, plan, lr=3e-3), fused=True)
    step(model, optimizer)
    state = copy.deepcopy(optimizer.state_dict())
    other = models.LM(D, "D")
    other.load_state_dict(model.state_dict())
    groups = anyinit.torch.param_groups(other, plan, lr=1.0)
    again = torch.optim.AdamW(groups, fused=True)
    again.load_state_dict(state)
    assert ratio(again) == pytest.approx(math.sqrt(D))
    assert [group["name"] for group in again.param_groups] == ["rest", "table"]
    step(model, optimizer)
    step(other, again)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two)


def test_one_adam_step_moves_the_table_further() -> None:
    model, plan = scaled()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    step(model, torch.optim.Adam(anyinit.torch.param_groups(model, plan, lr=1e-3)))
    moved = {
        name: float((parameter.detach() - before[name]).abs().max())
        for name, parameter in model.named_parameters()
    }
    assert moved["E"] / moved["blocks.0.qkv.weight"] == pytest.approx(math.sqrt(D), rel=0.01)


def test_plan_of_another_model_is_refused() -> None:
    _, plan = scaled()
    with pytest.raises(ValueError, match="does not belong to this model"):
        anyinit.torch.param_groups(models.Tied(D), plan)


def test_a_tie_made_after_the_plan_is_refused() -> None:
    model, plan = untied()
    model.head.weight = model.emb.weight
    with pytest.raises(ValueError, match="tied"):
        anyinit.torch.param_groups(model, plan)


def test_parameters_of_another_shape_are_refused() -> None:
    model, plan = scaled()
    model.E = nn.Parameter(torch.randn(10, D))
    with pytest.raises(ValueError, match="shape"):
        anyinit.torch.param_groups(model, plan)


def test_parameters_replaced_since_the_plan_are_refused() -> None:
    model, plan = scaled()
    groups = anyinit.torch.param_groups(model, plan)
    model.E = nn.Parameter(model.E.detach().clone())
    with pytest.raises(ValueError, match="replaced"):
        anyinit.torch.param_groups(model, plan)
    assert groups[1]["params"][0] is not model.E


@pytest.mark.parametrize("lr", [-1.0, "fast", None, True])
def test_rates_that_are_none(lr: Any) -> None:
    model, plan = scaled()
    with pytest.raises(ValueError, match="learning rate"):
        anyinit.torch.param_groups(model, plan, lr=lr)


@pytest.fixture
def mesh() -> Any:
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed.init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_groups_of_a_model_that_was_wrapped_afterwards(mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    model, plan = scaled()
    fully_shard(model, mesh=mesh)
    groups = anyinit.torch.param_groups(model, plan, lr=1e-3)
    assert {id(p) for group in groups for p in group["params"]} == {
        id(p) for p in model.parameters()
    }
    (table,) = [group for group in groups if group["params"][0] is model.E]
    assert table["lr"] == pytest.approx(1e-3 * math.sqrt(D))
    optimizer = torch.optim.AdamW(groups)
    model(idx()).sum().backward()
    optimizer.step()


def test_dropout_makes_no_rate_of_its_own() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(models.VOCAB, D)
            self.drop = nn.Dropout(0.1)
            self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, models.VOCAB)

        def forward(self, x: Any) -> Any:
            return self.head(self.norm(self.drop(self.table(x))))

    model = Model()
    plan = anyinit.torch.init_(model, idx())
    assert [row.m for row in plan.weights] == [1.0, 1.0]
    assert len(anyinit.torch.param_groups(model, plan)) == 1
