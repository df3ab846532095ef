"""Model folders read and written: network, pooling, tokenizer, fingerprint, card."""
