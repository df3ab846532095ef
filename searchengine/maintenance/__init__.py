"""An existing collection checked, copied, repaired and tuned."""
