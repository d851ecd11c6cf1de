"""anyinit for PyTorch: ``plan``, ``init_`` and ``param_groups``, offered as ``anyinit.torch``."""

from anyinit_torch._groups import param_groups as param_groups
from anyinit_torch._initialize import init_ as init_
from anyinit_torch._initialize import plan as plan
