"""Training files to examples to batches."""
