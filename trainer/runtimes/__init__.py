"""What runs a network: torch or OpenVINO; graphs compiled, measured and stored."""
