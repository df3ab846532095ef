"""An existing collection: reindex, check, repair, copies, statistics and tuning."""
