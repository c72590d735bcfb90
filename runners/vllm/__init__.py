"""Runs one cell on real vLLM with the plugin and measures it: `engine=vllm`.

execute        boot -> read back -> warm up -> load -> drain -> shut down -> record
  server, inproc   the engine in a process of its own, with or without HTTP
  process, guard   that process and everything it starts; nothing outlives the runner
  api_server       vLLM's server, which dies with the guard and tells it of its processes (family)
  remains          what is left of an engine, found wherever it is, before another one starts
  client, poller   the load at its planned times; the gauges once a second
  engine_record    what the engine's scheduler wrote down; hsexp.engine.recording writes it
  record           client and engine put together as an ordinary RunRecord
  readback, facts  the engine has what the cell asks for; where the numbers come from
  faults           why a run failed
"""
