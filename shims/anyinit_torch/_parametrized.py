"""Parametrized weights that are computed in a way that no analysis of moments can follow."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn.utils import parametrize

# Their classes have no public names.
_COMPUTED = ("_SpectralNorm", "_Orthogonal")


def computed_weights(
    model: torch.nn.Module,
) -> Iterator[tuple[str, parametrize.ParametrizationList, torch.Tensor]]:
    """Weights that parametrizations compute (spectral norm, orthogonal matrices), with values.

    They enter the analysis as they are: a singular value depends on how the entries of a matrix
    conspire, of which their second moment says nothing. All other parametrizations, weight norm
    among them, are followed.

    Arguments:
        model: the model; the buffers of its parametrizations are not written to.

    Yields:
        the name of the weight, its parametrization and its value.
    """
    for prefix, module in model.named_modules():
        if not isinstance(module, parametrize.ParametrizationList):
            continue
        computed = any(type(part).__name__ in _COMPUTED for part in module)
        if not computed or _has_no_values(module):
            continue
        training = {part: part.training for part in module.modules()}
        try:
            for part in training:
                part.training = False
            with torch.no_grad():
                value = module().detach()
        finally:
            for part, mode in training.items():
                part.training = mode
        yield prefix.replace("_orig_mod.", ""), module, value


def _has_no_values(module: torch.nn.Module) -> bool:
    return any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))
