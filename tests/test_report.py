"""What the report says and how it is laid out."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import Net
from plans import TIED, constants, scaled_logits, weight

import anyinit
from anyinit._findings import Finding, Kind, Reason
from anyinit._plan.plan import LeftAlone, Plan
from anyinit._report.collapse import collapse
from anyinit._report.render import WIDTH
from anyinit._report.report import report_of


def gpt(layers: int = 12) -> Plan:
    rows, left, findings = [], [], []
    for i in range(layers):
        rows += [
            weight(f"h_{i}/attn/query/kernel", (64, 4, 16), site="product"),
            weight(f"h_{i}/attn/out/kernel", (4, 16, 64), at_most=True, target=1 / 24),
            weight(f"h_{i}/Dense_0/kernel", (64, 256)),
            weight(f"h_{i}/Dense_1/kernel", (256, 64), moment_in=0.4251),
        ]
        left += constants(f"h_{i}/ln_1/scale", f"h_{i}/Dense_0/bias")
        findings.append(Finding(Kind.NORM_GAIN_BRANCH, f"h_{i}/post/scale", "model.py:7"))
    return Plan(tuple(rows), (*left, LeftAlone("A_log", Reason.NONLINEAR)), tuple(findings))


def row_of(plan: Plan, name: str) -> str:
    (line,) = [line for line in str(plan).splitlines() if line.startswith(name)]
    return line


def test_row_shows_every_number() -> None:
    plan = Plan(
        weights=(
            weight(
                "out/kernel",
                (256, 64),
                site="residual",
                where="gpt.py:31",
                moment_in=0.4251,
                c=0.5,
                target=1 / 8,
                at_most=True,
                std_before=0.0625,
                sigma=0.034,
                m=2.0,
                aliases=("twin/kernel",),
            ),
        )
    )
    assert re.split(r"\s{2,}", row_of(plan, "out/kernel")) == [
        *("out/kernel = twin/kernel", "256×64", "kernel", "residual", "gpt.py:31"),
        *("256", "0.425", "0.5", "≤ 0.125", "0.0625 → 0.034", "2"),
    ]


def test_headings_are_not_markup() -> None:
    assert "E[x²] in" in str(scaled_logits())


def test_brackets_in_paths_are_not_markup() -> None:
    assert "[red]layers[0]" in str(Plan(weights=(weight("[red]layers[0]", (2, 2)),)))


def test_stacked_leaf_shows_its_range() -> None:
    plan = Plan(
        weights=(
            weight("h/kernel", (3, 8, 8), sigma=(0.5, 0.25, 0.125), std_before=(1.0, 1.0, 1.0)),
            weight("g/kernel", (2, 8, 8), sigma=(0.5, 0.25), std_before=None),
        )
    )
    assert "1 … 1 → 0.5 … 0.125 (3 layers)" in row_of(plan, "h/kernel")
    assert "? → 0.5 … 0.25 (2 layers)" in row_of(plan, "g/kernel")


def test_equal_layers_are_collapsed() -> None:
    plan = gpt()
    text = str(plan)
    assert len(text.splitlines()) < 25
    assert len([line for line in text.splitlines() if line.startswith("h_{0…11}")]) == 4
    assert "h_{0…11}/ln_1/scale, h_{0…11}/Dense_0/bias" in text
    assert text.count("A residual branch ends in a normalization (h_{0…11}/post/scale)") == 1
    assert len(plan.to_dict()["weights"]) == 48


@pytest.mark.parametrize(
    ("names", "merged"),
    [
        (["a", "b"], ["a", "b"]),
        (["a_0"], ["a_0"]),
        (["a_0", "a_2", "a_3"], ["a_{0,2…3}"]),
        (["a_0/b_0", "a_0/b_1", "a_1/b_0", "a_1/b_1"], ["a_{0…1}/b_{0…1}"]),
        (["a_0/b_0", "a_0/b_1", "a_1/b_0"], ["a_{0…1}/b_0", "a_0/b_1"]),
        (["h9", "h10", "x"], ["h{9…10}", "x"]),
        ([], []),
    ],
)
def test_collapse(names: list[str], merged: list[str]) -> None:
    assert [name for name, _ in collapse((name, None) for name in names)] == merged


def test_layers_that_nearly_agree_are_one_row_with_rounded_numbers() -> None:
    moments = (0.4251, 0.4239, 0.4302, 0.9)
    rows = [weight(f"h_{i}/kernel", (8, 8), moment_in=m) for i, m in enumerate(moments)]
    (alike, apart) = report_of(Plan(weights=tuple(rows))).rows
    assert (alike[0], apart[0]) == ("h_{0…2}/kernel", "h_3/kernel")
    assert (alike[5], apart[5]) == ("≈ 0.43", "0.9")


def test_layers_that_differ_are_kept_apart() -> None:
    rows = [weight(f"h_{i}/kernel", (8, 8), moment_in=1.0 + i) for i in range(3)]
    assert len(report_of(Plan(weights=tuple(rows))).rows) == 3


def test_left_alone_says_each_reason_once() -> None:
    text = str(gpt())
    assert text.count(Reason.CONSTANT.value) == 1
    assert text.index(Reason.CONSTANT.value) < text.index("h_{0…11}/ln_1/scale")
    assert text.index(Reason.NONLINEAR.value) < text.index("A_log")


def test_findings_show_where() -> None:
    assert "erf_inv has no rule" in str(scaled_logits())
    assert "[model.py:9]" in str(scaled_logits())


def test_initial_loss_and_own_token() -> None:
    text = " ".join(str(scaled_logits(vocab=50_304, d=256)).split())
    assert "Initial cross-entropy: 14.45 nats = 11.33 + 3.12: ln V" in text
    assert "ln 50304 + 1/2" in text
    assert "Tied table wte/embedding: its lookup arrives with E[x²] = 1" in text
    assert "the token that was looked up is about 14.4" in text
    assert "near √d = 16 it lifts the first loss, and is unlearned in some 25 steps" in text


def test_small_own_token_logit_is_only_reported() -> None:
    row = weight("wte", (40, 16), roles=TIED, fan=16, arrival=1 / 16, own_token_logit=0.3)
    text = str(Plan(weights=(row,)))
    assert "is about 0.3." in text
    assert "lifts the first loss" not in text


def test_sections_without_content_are_left_out() -> None:
    text = str(Plan(weights=(weight("w", (2, 2)),)))
    assert "Left alone" not in text
    assert "Findings" not in text
    assert "At the start" not in text


def test_text_is_plain_and_of_fixed_width(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = dataclasses.replace(
        gpt(), weights=(weight("/".join(["block"] * 60), (2, 2)), *gpt().weights)
    )
    text = str(plan)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= WIDTH
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert str(plan) == text


def test_html_is_escaped() -> None:
    plan = Plan(
        weights=(weight("<script>", (2, 2), site="a&b"),),
        left_alone=constants("<b>"),
        findings=(Finding(Kind.NO_RULE, "<i>", "<string>:1"),),
        logits_moment=1.0,
        vocabulary=10,
    )
    html = plan._repr_html_()
    assert html.count("<table>") == html.count("</table>") == 1
    for raw in ("<script>", "<b>", "<i>", "<string>", "a&b"):
        assert raw not in html
    assert "&lt;script&gt;" in html
    assert "a&amp;b" in html


def test_repr_is_short() -> None:
    assert repr(gpt()) == "Plan(48 weights, 25 left alone, 12 findings)"


def test_weights_drawn_with_a_mean_are_noted() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        x = nn.relu(nn.Dense(64, kernel_init=nn.initializers.uniform(0.1), name="up")(x))
        return nn.Dense(64, name="down")(x)

    findings = anyinit.flax.plan(Net(body), jnp.zeros((4, 64))).findings
    (noted,) = [f for f in findings if f.kind is Kind.DRAWN_WITH_MEAN]
    assert noted.subject == "up/kernel"
    assert "a mean of 0.87 of its scale" in noted.message


@pytest.mark.parametrize(
    "shift", [5.0, np.arange(1.0, 65.0, dtype=np.float32)], ids=["one", "each"]
)
def test_an_input_that_the_model_centres_is_noted(shift: Any) -> None:
    def body(net: nn.Module, x: jax.Array, y: jax.Array) -> jax.Array:
        return nn.Dense(64)((x - 0.1) / 0.5) + nn.Dense(64)((y - shift) / 2.0)

    plan = anyinit.flax.plan(Net(body), jnp.zeros((4, 64)), jnp.zeros((4, 64)))
    (noted,) = [f for f in plan.findings if f.kind is Kind.SHIFTED_INPUT]
    assert noted.subject == "Float input 1"
    assert "is shifted by a constant" in noted.message and "empirical" in noted.message


def test_few_numbers_drawn_around_zero_are_not_noted() -> None:
    """Their own mean is off by chance."""

    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        return nn.Dense(1)(nn.relu(nn.Dense(4)(x)))

    plan = anyinit.flax.plan(Net(body), jnp.zeros((4, 4)))
    assert not [f for f in plan.findings if f.kind is Kind.DRAWN_WITH_MEAN]


def test_findings_that_differ_by_their_subject_are_one_sentence() -> None:
    kernels = [f"cell/{gate}/kernel" for gate in ("hi", "hf", "hg")]
    loops = tuple(Finding(Kind.RECURRENT, name, "model.py:5") for name in kernels)
    apart = tuple(Finding(Kind.NO_RULE, name, "model.py:9") for name in ("spam", "eggs"))
    text = str(anyinit.Plan(weights=(), findings=(*loops, *apart)))
    assert text.count("feeds back into itself") == 1
    assert "Each of these feeds back into itself in a loop" in text
    assert all(name in text for name in kernels)
    assert text.count("has no rule and could not be evaluated on samples") == 2


def test_rows_of_a_cell_inside_the_framework_have_the_line_that_calls_it() -> None:
    class Tagger(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            return nn.Dense(64)(nn.RNN(nn.LSTMCell(64))(x))

    plan = anyinit.flax.plan(Tagger(), jax.ShapeDtypeStruct((2, 8, 32), jnp.float32))
    assert all(row.where.startswith("test_report.py:") for row in plan.weights), plan
