"""The compiled search kernel: builds graphs of 8-bit codes, and walks and reranks in one call."""
