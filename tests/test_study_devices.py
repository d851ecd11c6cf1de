"""The study on several devices, in several processes, and killed on the way."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent))

from experiments.study import devices
from experiments.study.errors import StudyError
from experiments.study.presets import PRESETS
from experiments.study.protocol import scheme
from experiments.study.runs import Run
from experiments.study.train import Result, train

pytestmark = pytest.mark.standard_promotion

ROOT = Path(__file__).resolve().parent.parent
PROTOCOL = dataclasses.replace(PRESETS["smoke"].protocol, batch=8)
TEXT = np.random.default_rng(0).integers(0, PROTOCOL.vocab, 4_000, dtype=np.int32)
SMOKE = ["--preset", "smoke", "--schemes", "A", "C", "D'", "E", "--batch", "8"]


def trained(name: str, device_count: int) -> Result:
    mesh = devices.mesh_of(device_count, PROTOCOL.batch)
    text = devices.replicate(TEXT, mesh)
    return train(PROTOCOL, [Run(scheme(name), 32, 1e-2, 0)], mesh, 1, text, text)[0]


def process(out: Path, *arguments: str) -> subprocess.Popen[str]:
    """The study's command line in a process of its own, with one device."""
    command = [sys.executable, str(ROOT / "experiments" / "tied.py"), *SMOKE, "--out", str(out)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    return subprocess.Popen(
        [*command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


def finished(running: subprocess.Popen[str]) -> str:
    output, _ = running.communicate(timeout=500)
    assert running.returncode == 0, output
    return output


def rows(out: Path) -> dict[Any, Any]:
    lines = [json.loads(line) for line in (out / "runs.jsonl").read_text("utf-8").splitlines()]
    return {(r["kind"], r["scheme"], r["width"]): r for r in lines[1:]}


@pytest.mark.parametrize("name", ["C", "D′", "E"])
def test_eight_devices_train_as_one_does(name: str) -> None:
    assert len(jax.devices()) >= 8
    one, eight = trained(name, 1), trained(name, 8)
    np.testing.assert_allclose(eight.losses, one.losses, rtol=0, atol=1e-4)
    np.testing.assert_allclose(eight.ratios, one.ratios, rtol=1e-3)
    assert eight.validation_loss == pytest.approx(one.validation_loss, abs=1e-4)


def test_a_batch_that_the_devices_do_not_divide() -> None:
    with pytest.raises(
        StudyError, match=r"a batch of 12 windows cannot be split over 8 devices: .*--devices 6"
    ):
        devices.mesh_of(8, 12)


def test_more_devices_than_there_are() -> None:
    with pytest.raises(StudyError, match=r"--devices 500 were asked for, but \d+ are there"):
        devices.mesh_of(500, 500)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    finished(process(out))
    return out


def test_two_processes_train_as_one_does(whole: Path, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    hosts = ["--coordinator", address, "--processes", "2", "--process"]
    both = [process(tmp_path / "out", *hosts, str(index)) for index in range(2)]
    outputs = [finished(running) for running in both]
    assert "2 × cpu" in outputs[0]
    assert "tokens" not in outputs[1]  # only the first one speaks, the collectives library aside
    one, two = rows(whole), rows(tmp_path / "out")
    assert one.keys() == two.keys()
    for key, row in one.items():
        if row["kind"] == "run":
            np.testing.assert_allclose(two[key]["losses"], row["losses"], rtol=0, atol=1e-4)


def test_killed_at_any_moment_it_goes_on_with_the_same_rows(whole: Path, tmp_path: Path) -> None:
    kept = tmp_path / "runs.jsonl"
    expected = (whole / "runs.jsonl").read_bytes()
    for lines in (2, 10):  # while it measures, and while it trains
        running = process(tmp_path)
        while running.poll() is None:
            if kept.exists() and kept.read_bytes().count(b"\n") >= lines:
                running.send_signal(signal.SIGKILL)
                break
            time.sleep(0.01)
        running.communicate()
        done = kept.read_bytes()
        assert expected.startswith(done[: done.rfind(b"\n") + 1])
    finished(process(tmp_path))
    assert kept.read_bytes() == expected
