"""Which devices share a batch, on this host or on several."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments.study.errors import StudyError

AXIS = "data"
REPLICATED = PartitionSpec()


def connect(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Join the other processes of the study; what is None is found out by JAX."""
    try:
        jax.distributed.initialize(coordinator, processes, process)
    except (ValueError, RuntimeError) as error:
        raise StudyError(
            f"cannot join the other processes ({error}): give --coordinator HOST:PORT, "
            "--processes COUNT and --process INDEX, alike in all but the index"
        ) from error


def mesh_of(count: int | None, batch: int) -> Mesh:
    """A mesh over the first `count` devices, or all; each takes its part of a batch."""
    devices = jax.devices()
    if count is not None and not 1 <= count <= len(devices):
        raise StudyError(
            f"--devices {count} were asked for, but {len(devices)} are there: give 1 to "
            f"{len(devices)}"
        )
    devices = devices[:count]
    if batch % len(devices):
        fitting = [n for n in range(1, len(devices)) if batch % n == 0]
        raise StudyError(
            f"a batch of {batch} windows cannot be split over {len(devices)} devices: give "
            f"--devices {fitting[-1]}, or a --batch that {len(devices)} divides"
        )
    return Mesh(np.array(devices), (AXIS,))


def own_mesh() -> Mesh:
    """A mesh of one device of this process."""
    return Mesh(np.array(jax.local_devices()[:1]), (AXIS,))


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding under which every device holds the whole array."""
    return NamedSharding(mesh, REPLICATED)


def replicate(tree: Any, mesh: Mesh) -> Any:
    """Put host arrays or numbers on every device of the mesh."""
    return jax.device_put(tree, replicated(mesh))


def is_first() -> bool:
    """Whether this process is the one that writes and speaks."""
    return jax.process_index() == 0


def agreed(values: Any) -> np.ndarray:
    """The first process's values, in every process."""
    values = np.asarray(values)
    if jax.process_count() == 1:
        return values
    return np.asarray(multihost_utils.broadcast_one_to_all(values))
