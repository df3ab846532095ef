"""The compiled search kernel: walks over the graph that faiss wrote, and reranks, in one call."""
