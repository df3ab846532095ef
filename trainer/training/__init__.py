"""Encoders trained: config, loop, checkpoints."""
