"""The page that a run of the whole paper ends with: each published number beside ours."""
