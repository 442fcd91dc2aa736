"""The kinds of arrays that cross between numpy and the library."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]
