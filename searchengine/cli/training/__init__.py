"""Commands that train: train and mine."""
