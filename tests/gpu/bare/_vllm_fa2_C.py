"""Lets vLLM import its interface to FlashAttention, which is never called: attention is
Triton's."""
