"""The battery: every model of the `breadth_models_*` files by name."""

from __future__ import annotations

import breadth_models_convolutional
import breadth_models_details
import breadth_models_experts
import breadth_models_lifted
import breadth_models_recurrent
import breadth_models_sharing
import breadth_models_transformers
from breadth_case import Case

FAMILIES: dict[str, dict[str, Case]] = {
    "lifted": breadth_models_lifted.CASES,
    "recurrent": breadth_models_recurrent.CASES,
    "convolutional": breadth_models_convolutional.CASES,
    "experts": breadth_models_experts.CASES,
    "sharing": breadth_models_sharing.CASES,
    "transformers": breadth_models_transformers.CASES,
    "details": breadth_models_details.CASES,
}
BATTERY = {name: case for cases in FAMILIES.values() for name, case in cases.items()}
