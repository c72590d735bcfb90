"""What carries a plan out: worker processes, and the engines that run a cell."""
