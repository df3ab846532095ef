"""How good vectors are: similarity judgements, transfer, geometry, labels, mteb."""
