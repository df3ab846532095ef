"""A longer window: position interpolation, shifted sparse attention, adapters (LongLoRA)."""
