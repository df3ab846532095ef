"""Text to vectors: load, run, train and measure sentence encoders.

Import from the modules (`from searchengine.trainer.encoder import Encoder`): importing the package
itself loads nothing heavy.
"""

import os

# OpenMP reads this when torch is loaded. Its threads wait for one another some thousand times a
# second, and by default spin for milliseconds: on a busy machine the thread that is waited for gets
# no processor meanwhile, and torch is up to thirty times slower.
if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = "1000"
