"""Does a request that adopts retained state continue as without it? Checks on real vLLM (D.5)."""
