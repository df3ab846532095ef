"""Runtimes: torch or OpenVINO; graphs compiled, measured and stored."""
