"""The simulated engine: V1 scheduling over a step-time model, with the real memory code."""
