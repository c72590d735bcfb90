"""Kernels over paged states: vLLM's own on a CPU, Triton on a GPU; see `paged.ops_for`."""
