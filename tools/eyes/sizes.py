"""How large the tower is, and how it takes pictures: what drawing, teaching and writing agree on."""

SIDE = 50
PATCH = 10
GRID = SIDE // PATCH
POSITIONS = GRID * GRID
WIDTH = 192
HEADS = 8
LAYERS = 4
LOCAL_LAYERS = 2
HIDDEN = 384
EPSILON = 1e-6
MEAN, DEVIATION = 0.5, 0.25
PROJECTED = 576
