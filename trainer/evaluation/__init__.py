"""How good vectors and rankings are: similarity, geometry, labels, mteb, metrics, significance."""
