"""Families of primitives, by name."""

from __future__ import annotations

# The same numbers in the same places: dtype changes, markers and placement; of a complex signal one
# of its two parts, which are alike.
IDENTITY = frozenset(
    """convert_element_type copy copy_p stop_gradient reduce_precision sharding_constraint name
    optimization_barrier pvary pcast mesh_cast reshard device_put settle real imag
    layout_constraint to_edtype from_edtype""".split()
)

# The same numbers in other places.
SHAPE = frozenset("reshape broadcast_in_dim transpose squeeze expand_dims broadcast tile".split())

# The same numbers, whatever their places and dtype.
LAYOUT = IDENTITY | SHAPE

# Some of the numbers, or all of them in another order along an axis.
PICK = frozenset(
    """slice dynamic_slice rev gather split stack_item sort roll random_shuffle
    place""".split()
)

# Several values side by side.
JOIN = frozenset(
    """concatenate pad stack mix complex dynamic_update_slice scatter scatter-add scatter-sub
    select_and_scatter_add""".split()
)

SUMS = frozenset("reduce_sum reduce_window_sum segment_sum psum".split())

EXTREMES = frozenset(
    """reduce_max reduce_min reduce_window_max reduce_window_min scatter-max scatter-min pmax
    pmin""".split()
)

REDUCTIONS = SUMS | EXTREMES

CONTRACTIONS = frozenset(
    "dot_general contract conv_general_dilated ragged_dot ragged_dot_general".split()
)

RANDOM = frozenset(
    """random_bits random_wrap random_unwrap random_seed random_split random_fold_in threefry2x32
    random_clone random_gamma rng_bit_generator rng_uniform""".split()
)

COMPARISONS = frozenset("eq ne lt le gt ge is_finite eq_to lt_to le_to".split())

# f(s·x) = s^degree · f(x) for s > 0, element by element.
HOMOGENEOUS_DEGREE = {
    "neg": 1.0,
    "abs": 1.0,
    "square": 2.0,
    "sqrt": 0.5,
    "rsqrt": -0.5,
    "cbrt": 1.0 / 3.0,
}

ELEMENTWISE = frozenset(
    """neg sign floor ceil round is_finite exp exp2 log log1p expm1 tanh logistic sin cos tan asin
    acos atan sinh cosh asinh acosh atanh sqrt rsqrt cbrt square abs erf erfc erf_inv lgamma digamma
    not integer_pow pow max min add add_any sub mul div rem atan2 nextafter and or xor
    shift_left shift_right_logical shift_right_arithmetic eq ne lt le gt ge eq_to lt_to le_to
    select_n clamp bitcast_convert_type population_count clz igamma igammac polygamma zeta
    bessel_i0e bessel_i1e igamma_grad_a random_gamma_grad regularized_incomplete_beta complex conj
    """.split()
)

ADDITIONS = frozenset("add add_any sub".split())
