"""anyinit for PyTorch; importing this module imports torch."""

from anyinit_torch import init_ as init_
from anyinit_torch import measure as measure
from anyinit_torch import param_groups as param_groups
from anyinit_torch import plan as plan
