"""anyinit for PyTorch, offered as ``anyinit.torch``."""

from anyinit_torch._groups import param_groups as param_groups
from anyinit_torch._initialize import init_ as init_
from anyinit_torch._initialize import measure as measure
from anyinit_torch._initialize import plan as plan
