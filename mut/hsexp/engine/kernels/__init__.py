"""Kernels over paged states: vLLM's own on a CPU, Triton on a GPU, chosen once by `ops_for`."""
