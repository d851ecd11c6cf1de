"""The figures of the page that this study repeats: wikitext-2, V = 33,527, 4 layers, 800 steps."""

INITIAL_LOSS = {  # at d = 128 and at d = 1024
    "A": (110.0, 905.0),
    "B": (10.4, 10.7),
    "C": (11.2, 28.3),
    "D": (11.2, 28.3),
    "D′": (11.2, 28.3),
    "F": (10.8, 11.0),
    "E": (10.9, 10.9),
}
VALIDATION_LOSS = {  # by width; the mean of two seeds at the best rate
    128: {"A": 6.25, "B": 6.12, "C": 5.77, "D": 6.00, "D′": 5.86, "F": 5.87, "E": 5.92},
    512: {"A": 6.85, "B": 5.86, "C": 5.71, "D": 6.15, "D′": 5.66, "F": 5.88, "E": 5.73},
}
NOISE = 0.05
"""Differences of validation loss below this are within the scatter of seeds."""
