"""The settings of a training run: their checks, help and lines in the model card."""
