"""Text to vectors: load, run, train and measure sentence encoders.

Import from the modules (`from trainer.encoder import Encoder`): importing the package itself loads
nothing heavy.
"""

from pathlib import Path

# Module names of the last release, until the next one.
__path__.append(str(Path(__file__).with_name("deprecated")))
