"""Small experiments on the memory core alone: no engine, no time, every number a count."""
