"""Retrieval against judgements: metrics, significance, run files, hard negatives."""
