"""Model folders read and written: network, pooling and dense modules, tokenizer."""
