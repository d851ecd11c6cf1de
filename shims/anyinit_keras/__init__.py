"""anyinit for Keras 3, offered as ``anyinit.keras``."""

from anyinit_keras._initialize import init as init
from anyinit_keras._initialize import measure as measure
from anyinit_keras._initialize import plan as plan
from anyinit_keras._optimizer import optimizer as optimizer
