"""Hugging Face models, from small random configurations: logits, streams, completeness."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import torch_hub as hub
from torch_measure import assert_complete, moment

import anyinit.torch

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

SEEDS = 3

SLOW = {"bart", "bloom", "clip", "gemma", "gemma3", "phi3", "rwkv", "swin", "whisper"}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def cases() -> list[Any]:
    found = []
    for name in hub.BATTERY:
        marks = [pytest.mark.slow] if name in SLOW else []
        found.append(pytest.param(name, marks=marks))
    return found


class Probe:
    """Second moments of what enters and leaves chosen modules, and of an output."""

    def __init__(self, model: Any, entry: hub.Entry) -> None:
        self.found: dict[str, float] = {}
        modules = dict(model.named_modules())
        if entry.output in modules:
            modules[entry.output].register_forward_hook(self._leaving(entry.output))
        for name in entry.stream:
            modules[name][0].register_forward_pre_hook(self._entering(name), with_kwargs=True)
            modules[name][-1].register_forward_hook(self._leaving(f"{name} end"))

    def _leaving(self, name: str) -> Any:
        def hook(module: Any, args: Any, output: Any) -> None:
            self.found[name] = moment(output[0] if isinstance(output, tuple) else output)

        return hook

    def _entering(self, name: str) -> Any:
        def hook(module: Any, args: Any, kwargs: Any) -> None:
            self.found[f"{name} start"] = moment(args[0] if args else kwargs["hidden_states"])

        return hook


@pytest.mark.parametrize("name", cases())
def test_logits_and_streams(name: str) -> None:
    entry = hub.BATTERY[name]
    measured: dict[str, list[float]] = {}
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        model = entry.make()
        plan = anyinit.torch.init_(model, **entry.inputs(0))
        assert_complete(plan, model)
        probe = Probe(model, entry)
        with torch.no_grad():
            output = model(**entry.inputs(seed + 1))
        if entry.output not in probe.found:
            probe.found[entry.output] = moment(output[entry.output])
        for place, value in probe.found.items():
            measured.setdefault(place, []).append(value)
    means = {place: sum(values) / len(values) for place, values in measured.items()}
    assert entry.low <= means[entry.output] <= entry.high
    for stream in entry.stream:
        assert means[f"{stream} end"] <= means[f"{stream} start"] + 1.2


def test_lines_are_those_of_the_modelling_file() -> None:
    plan = anyinit.torch.plan(hub.BATTERY["llama"].make(), **hub.ids(0))
    assert {row.where.partition(":")[0] for row in plan.weights} == {"modeling_llama.py"}


def test_a_model_is_as_before_when_it_is_planned() -> None:
    model = hub.BATTERY["gpt2"].make()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    objects = [id(parameter) for parameter in model.parameters()]
    anyinit.torch.plan(model, **hub.ids(0))
    assert objects == [id(parameter) for parameter in model.parameters()]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_every_name_of_a_tie_is_an_alias() -> None:
    plan = anyinit.torch.plan(hub.BATTERY["t5"].make(), **hub.pairs(0))
    (row,) = [row for row in plan.weights if row.is_tied]
    names = {row.path, *row.aliases}
    assert {"shared.weight", "lm_head.weight", "encoder.embed_tokens.weight"} <= names


def test_a_large_model_is_planned_on_the_meta_device() -> None:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=4,
        num_attention_heads=32,
        num_key_value_heads=8,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    plan = anyinit.torch.plan(model, torch.zeros(1, 16, dtype=torch.int64, device="meta"))
    table = next(
        row for row in plan.weights if row.path == "model.layers.0.self_attn.q_proj.weight"
    )
    assert table.sigma == pytest.approx(4096**-0.5, rel=0.01)
    assert any(finding.kind.name == "NO_VALUES" for finding in plan.findings)
    with pytest.raises(ValueError, match="meta device"):
        anyinit.torch.init_(model, torch.zeros(1, 16, dtype=torch.int64))
