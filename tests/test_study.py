"""The study: smoke preset, data, resuming, what is written, and what is refused."""

from __future__ import annotations

import functools
import json
import math
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import anyinit
import anyinit.flax

sys.path.append(str(Path(__file__).resolve().parent.parent))

from benchmarks.initial_loss import PAGE, measure
from experiments import tied
from experiments.study import data, loss, train
from experiments.study.errors import StudyError
from experiments.study.protocol import PAGE_ROWS, PRESETS, scheme
from experiments.study.records import Records

# Flax's layers and optax's Adam promote bfloat16, integers and floats.
pytestmark = pytest.mark.standard_promotion

SMOKE = PRESETS["smoke"]
PROTOCOL = SMOKE.protocol


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> data.Tokens:
    return data.load("topics", PROTOCOL.vocab, PROTOCOL.window, tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("smoke")
    train.advance.clear_cache()
    assert tied.main(["--preset", "smoke", "--out", str(out)]) == 0
    assert train.advance._cache_size() == 2  # one executable for all tied schemes, one for E
    return out


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_smoke_writes_every_row_a_table_and_figures(smoke: Path) -> None:
    rows = lines(smoke / "runs.jsonl")[1:]
    trained = {row["scheme"]: row for row in rows if row["kind"] == "run"}
    assert tuple(trained) == PAGE_ROWS
    assert all(len(row["losses"]) == PROTOCOL.steps for row in trained.values())
    assert sum(row["kind"] == "initial" for row in rows) == 2 * len(PAGE_ROWS)
    table = (smoke / "table.md").read_text(encoding="utf-8")
    assert "D, table's rate × √d" in table
    assert "A's initial loss grows with width" in table
    for figure in ("initial_loss.png", "training_d32.png"):
        assert (smoke / figure).read_bytes().startswith(b"\x89PNG")


def test_d_prime_is_d_until_the_first_step(smoke: Path) -> None:
    runs = {row["scheme"]: row for row in lines(smoke / "runs.jsonl")[1:] if row["kind"] == "run"}
    assert runs["D"]["losses"][0] == runs["D′"]["losses"][0]
    assert runs["D"]["losses"][1] != runs["D′"]["losses"][1]


def test_resuming_gives_the_same_rows(
    smoke: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (smoke / "runs.jsonl").read_bytes()
    kept = whole.splitlines(keepends=True)[:-3]
    (tmp_path / "runs.jsonl").write_bytes(b"".join(kept) + b'{"kind": "run", "sche')
    assert tied.main(["--preset", "smoke", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "runs.jsonl").read_bytes() == whole
    assert (tmp_path / "runs.jsonl.broken").read_bytes() == b'{"kind": "run", "sche\n'
    assert "was cut" in capsys.readouterr().out


def test_nothing_left_to_do(smoke: Path) -> None:
    before = (smoke / "runs.jsonl").read_bytes()
    assert tied.main(["--preset", "smoke", "--out", str(smoke)]) == 0
    assert (smoke / "runs.jsonl").read_bytes() == before


def test_data_is_the_same_every_time(tokens: data.Tokens) -> None:
    again = data.tokenize(list(reversed(data.topics())), PROTOCOL.vocab)
    assert again.fingerprint == tokens.fingerprint
    assert 0.01 < len(tokens.validation) / len(tokens.train) < 0.2
    assert tokens.train.max() < PROTOCOL.vocab


def test_a_damaged_cache_is_made_anew(tokens: data.Tokens, tmp_path: Path) -> None:
    data.load("topics", PROTOCOL.vocab, PROTOCOL.window, tmp_path)
    (cache,) = tmp_path.iterdir()
    cache.write_bytes(cache.read_bytes()[:1000])
    again = data.load("topics", PROTOCOL.vocab, PROTOCOL.window, tmp_path)
    assert again.fingerprint == tokens.fingerprint


def test_loss_and_its_gradients_are_those_of_whole_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    hidden, table = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((24, 8), (30, 8)))
    targets = jnp.asarray(rng.integers(0, 30, 24))

    def whole(hidden: jax.Array, table: jax.Array) -> jax.Array:
        losses = optax.softmax_cross_entropy_with_integer_labels(hidden @ table.T, targets)
        return 3 * losses.mean()

    def blocks(hidden: jax.Array, table: jax.Array) -> jax.Array:
        return 3 * loss.cross_entropy(hidden, table, targets)

    monkeypatch.setattr(loss, "BLOCK", 30 * 6)
    assert loss.rows_per_block(24, 30) == 6
    expected = jax.value_and_grad(whole, (0, 1))(hidden, table)
    found = jax.value_and_grad(blocks, (0, 1))(hidden, table)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(blocks(hidden, table), expected[0], rtol=1e-6)


def test_gradients_are_those_of_the_model_itself(tokens: data.Tokens) -> None:
    for name in ("C", "E"):
        shape, numbers = train.shape_of(PROTOCOL, scheme(name), 32), train.traced(scheme(name), 32)
        params = train.initial_params(shape, scheme(name), 0)
        model = shape.model(numbers.lookup, numbers.logits)
        key, text = jax.random.key(1), jnp.asarray(tokens.train)
        batch, targets = train.random_windows(key, text, 3, PROTOCOL.window)

        def plain(params: Any, model: Any = model, batch: Any = batch, targets: Any = targets):
            logits = model.apply({"params": params}, batch)
            return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

        expected, gradients = jax.jit(jax.value_and_grad(plain))(params)
        ours_of = jax.jit(functools.partial(train.loss_and_gradients, model))
        found, ours, _ = ours_of(params, batch, targets)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), ours, gradients)


@pytest.mark.parametrize("name", ["A", "C", "D", "D′"])
def test_first_step_moves_the_table_by_its_own_rate(name: str, tokens: data.Tokens) -> None:
    width, rate = 32, 1e-3
    shape, numbers = (
        train.shape_of(PROTOCOL, scheme(name), width),
        train.traced(scheme(name), width, rate),
    )
    fixed = {"shape": shape, "protocol": PROTOCOL, "plan": train.plan_of(shape)}
    before = train.initial_params(shape, scheme(name), 0)
    state = train.State(jax.tree.map(jnp.copy, before), train.start(before, numbers, **fixed))
    text, key = jnp.asarray(tokens.train), jax.random.key(0)
    after, _ = train.advance(state, numbers, text, key, 0, count=1, **fixed)
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), after.params, before)
    first = rate / PROTOCOL.warmup  # Adam's first step is the rate itself
    m = math.sqrt(width) if name == "D′" else 1.0
    assert moved["table"]["embedding"] == pytest.approx(m * first, rel=0.02)
    assert moved["blocks_0"]["qkv"]["kernel"] == pytest.approx(first, rel=0.02)


def test_d_prime_steps_as_the_librarys_partition_does(tokens: data.Tokens) -> None:
    width, rate, row = 32, 1e-2, scheme("D′")
    shape, numbers = train.shape_of(PROTOCOL, row, width), train.traced(row, width, rate)
    model = shape.model(logits=width**-0.5)
    plan = anyinit.flax.plan(model, jnp.zeros((1, 8), jnp.int32))
    params = train.initial_params(shape, row, 0)
    gradients = jax.tree.map(lambda leaf: 1e-3 * jnp.cos(leaf), params)
    library = optax.chain(
        optax.clip_by_global_norm(1.0),
        anyinit.optax_partition(
            params,
            plan=plan,
            learning_rate=lambda step: rate * train.schedule(PROTOCOL, step),
            b1=0.9,
            b2=0.95,
            weight_decay=0.0,
        ),
    )
    ours = train.optimizer(PROTOCOL, train.plan_of(shape), params, numbers)
    updates = []
    for each in (library, ours):
        state, update = each.init(params), jax.jit(each.update)
        for _ in range(3):
            step, state = update(gradients, state, params)
        updates.append(step)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), *updates)


def test_schemes_share_the_rest_of_the_network() -> None:
    drawn = {
        name: train.initial_params(train.shape_of(PROTOCOL, scheme(name), 32), scheme(name), seed=0)
        for name in PAGE_ROWS
    }
    for params in drawn.values():
        for part in ("blocks_0", "norm"):
            jax.tree.map(np.testing.assert_array_equal, params[part], drawn["A"][part])
    stds = {name: float(params["table"]["embedding"].std()) for name, params in drawn.items()}
    expected = {"A": 1.0, "B": 0.02, "C": 32**-0.5, "D": 1.0, "D′": 1.0, "F": 32**-0.5, "E": 1.0}
    assert stds == pytest.approx(expected, rel=0.02)
    assert float(drawn["E"]["head"].std()) == pytest.approx(32**-0.5, rel=0.02)


@pytest.mark.parametrize("name", PAGE_ROWS)
def test_initial_loss_at_the_vocabulary_of_the_page(name: str) -> None:
    assert measure(name, 128).loss == pytest.approx(PAGE[name][0], rel=0.03)


def test_a_run_that_is_not_finite_is_kept_as_such(tmp_path: Path) -> None:
    identity = {"kind": "run", "scheme": "A", "width": 32, "rate": 1e3, "seed": 0}
    records = Records(tmp_path / "runs.jsonl", {})
    records.add(identity | {"validation_loss": math.nan, "losses": [6.0, math.inf]})
    (row,) = Records(tmp_path / "runs.jsonl", {}).rows
    assert row == identity | {"validation_loss": None, "losses": [6.0, None]}


def test_rows_of_another_protocol_are_refused(
    smoke: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (smoke / "runs.jsonl").read_bytes()
    arguments = ["--preset", "small", "--data", "topics", "--out", str(smoke)]
    assert tied.main(arguments) == 2
    error = capsys.readouterr().err
    assert "another protocol" in error
    assert "vocab = 512" in error
    assert "vocab = 2048" in error
    assert (smoke / "runs.jsonl").read_bytes() == before


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert tied.main(["--preset", "smoke", "--out", str(tmp_path / "file" / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: cannot")
    assert "--out" in error


def test_an_unknown_scheme(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tied.main(["--preset", "smoke", "--schemes", "G", "--out", str(tmp_path)]) == 2
    assert "no scheme is called 'G': choose among A, B" in capsys.readouterr().err


def test_a_text_shorter_than_a_window(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"has \d+ tokens, but one window needs 100001"):
        data.load("topics", PROTOCOL.vocab, 100_000, tmp_path)


def test_a_vocabulary_that_the_text_does_not_give() -> None:
    with pytest.raises(StudyError, match="a vocabulary of 257 tokens, but 300 were asked for"):
        data.tokenize(["a", "b"], 300)


def test_a_line_that_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text('{"protocol": {}}\n[1]\n')
    with pytest.raises(StudyError, match=r"line 2 of .* is not a row"):
        Records(path, {})
