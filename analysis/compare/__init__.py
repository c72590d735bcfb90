"""The page at the end of a run of the whole paper: each published number beside ours."""
