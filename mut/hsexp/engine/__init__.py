"""The patched engine: the memory organizations inside vLLM V1, as an out-of-tree plugin."""
