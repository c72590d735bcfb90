"""The step-time model of a device, fitted to the steps of recorded runs or to published tables."""
