"""Commands that train: train, train-cross-encoder and mine."""
