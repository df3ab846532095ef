"""How good vectors are: similarity of sentences, geometry, labels, mteb; intervals."""
