"""An existing collection: check, copies, repair, statistics and tuning."""
