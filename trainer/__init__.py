"""Text to vectors: load, run, train and measure sentence encoders.

Import from the modules (`from trainer.encoder import Encoder`): importing the package itself loads
nothing heavy.
"""
