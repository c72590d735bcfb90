"""A stand-in for vLLM's server that does as its script says: `fake_server.py SCRIPT.json FLAGS ...`

A real process with real HTTP, threads and files, but no model: every output token is 7. It keeps
the record that the engine's scheduler would keep. The script may say

    labels              what hsexp:engine_info tells
    boot                a line for the log and exit 1; or "hang"
    ports_taken         so many starts find the port taken
    token_s             time a token takes
    one_at_a_time       requests wait for each other
    chunk               tokens of a chunk
    die_after_tokens, stall_after_tokens   of all requests
    die_after_s         from the first refusal
    refuse              [HTTP status, message] for every request; warm-ups pass
    obeys               it generates the only token that a request allows
    short, other_prompt what the answers do wrong
    drop                so many connections are cut in the middle
    no_end, slow_end_s  how the record ends
    trace_fault         how a trace ends: none | gap | full | torn
    family              a core below the server and a worker below it, as vLLM has them; their
                        process ids are in SCRIPT.json.family
    deaf                with a family: nobody notices the death of a core or worker
"""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

if __name__ == "__mp_main__":  # as in runners.vllm.api_server
    from hsexp.descent import die_with_parent
    from runners.vllm import family

    die_with_parent(os.getppid())
    family.join()


def run_core(script_path, deaf):
    """A core: starts a worker, and ends when that has died."""
    worker = start("VllmWorker-0", run_worker, script_path)
    while deaf or worker.is_alive():
        time.sleep(0.01)
    os._exit(1)


def run_worker(script_path):
    time.sleep(3600)


def start(name, run, script_path, *more):
    process = multiprocessing.get_context("spawn").Process(
        target=run, name=name, args=(script_path, *more)
    )
    process.start()
    with Path(f"{script_path}.family").open("a") as file:
        file.write(f"{name} {process.pid}\n")
    return process


def watch(core):
    core.join()
    sys.stdout.write("RuntimeError: the engine core is dead\n")
    sys.stdout.flush()
    os._exit(1)


class Engine:
    """What the handlers share."""

    def __init__(self, script, config):
        self.script = script
        record = Path(config["hsexp_record"])
        self.trace = None
        if "hsexp_trace" in config:
            from fake_trace import FakeTrace

            self.trace = FakeTrace(Path(config["hsexp_trace"]), config)
        self.lock = threading.Lock()
        self.alone = threading.Lock()
        self.record = record.open("w")
        self.running = 0
        self.tokens = 0
        self.drops = script.get("drop", 0)
        self.write("start", time.monotonic_ns())

    def write(self, *event):
        with self.lock:
            self.record.write(json.dumps(event) + "\n")
            self.record.flush()

    def counters(self):
        return {"preemptions": 0, "lost_checkpoints": 5}

    def end(self, *_):
        sys.stdout.write("Shutting down\n")
        sys.stdout.flush()
        time.sleep(self.script.get("slow_end_s", 0.0))
        if not self.script.get("no_end"):
            self.write("end", time.monotonic_ns(), self.counters(), 0, 0)
        if self.trace is not None:
            self.trace.end(self.script.get("trace_fault"))
        os._exit(0)


class Handler(BaseHTTPRequestHandler):
    """One answer."""

    engine: Engine

    def log_message(self, *_):
        pass

    def do_GET(self):
        labels = ",".join(f'{k}="{v}"' for k, v in self.engine.script["labels"].items())
        page = [f"hsexp:engine_info{{{labels}}} 1.0"]
        page += [f"vllm:num_requests_running {float(self.engine.running)}"]
        page += ["vllm:num_requests_waiting 0.0", "hsexp:preemptions_total 0.0"]
        page += ['hsexp:free_pages{pool="shared"} 9.0']
        self.answer(200, "\n".join([*page, ""]))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "null")
        if self.path == "/reset_prefix_cache":
            self.engine.write(
                "mark", time.monotonic_ns(), {"preemptions": 0, "lost_checkpoints": 2}
            )
            self.answer(200, "")
        elif "refuse" in self.engine.script and "warmup" not in body["request_id"]:
            status, message = self.engine.script["refuse"]
            if "die_after_s" in self.engine.script:
                threading.Timer(self.engine.script["die_after_s"], os._exit, [13]).start()
            self.answer(status, json.dumps({"error": {"message": message}}))
        else:
            self.engine.running += 1
            self.serve(body)
            self.engine.running -= 1

    def answer(self, status, text):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def serve(self, body):
        if self.engine.script.get("one_at_a_time"):
            with self.engine.alone:
                self.stream(body)
        else:
            self.stream(body)

    def stream(self, body):
        trace, name = self.engine.trace, f"cmpl-{body['request_id']}-0-x"
        if trace is None:
            self.stream_tokens(body)
            return
        sequence = trace.admit(name, len(body["prompt"]))
        self.stream_tokens(body)
        trace.release(sequence, len(body["prompt"]))

    def stream_tokens(self, body):
        script, engine = self.engine.script, self.engine
        prompt, first_scheduled = body["prompt"], time.monotonic_ns()
        count = body["max_tokens"] - script.get("short", 0)
        chunk = script.get("chunk", 1)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        sent = 0
        while sent < count:
            now = min(chunk, count - sent)
            for _ in range(now):
                start = time.monotonic_ns()
                time.sleep(script.get("token_s", 0.001))
                prefill = 0 if sent else len(prompt)
                engine.write("step", start, time.monotonic_ns(), int(sent > 0), prefill, 1, 0)
                if engine.trace is not None:
                    engine.trace.step(start, int(sent > 0), prefill)
                sent += 1
                self.act_on_tokens(body)
            said = [3] if script.get("other_prompt") else prompt
            token = int(next(iter(body.get("logit_bias", "7")))) if script.get("obeys") else 7
            choice = {"token_ids": [token] * now, "prompt_token_ids": said if sent == now else None}
            self.event({"choices": [choice]})
            if engine.drops and "warmup" not in body["request_id"]:
                engine.drops -= 1
                self.connection.close()
                return
        engine.write(
            "request", f"cmpl-{body['request_id']}-0-x", "FINISHED_LENGTH_CAPPED", first_scheduled,
            0, 0, len(prompt), 0, 0,
        )  # fmt: skip
        self.wfile.write(b"data: [DONE]\n\n")

    def act_on_tokens(self, body):
        engine, script = self.engine, self.engine.script
        if "warmup" in body["request_id"]:
            return
        engine.tokens += 1
        if engine.tokens == script.get("die_after_tokens"):
            sys.stdout.write("RuntimeError: the fake engine has died\n")
            sys.stdout.flush()
            os._exit(13)
        if engine.tokens >= script.get("stall_after_tokens", 10**9):
            time.sleep(3600)

    def event(self, message):
        self.wfile.write(f"data: {json.dumps(message)}\n\n".encode())
        self.wfile.flush()


def main(script_path, *flags):
    script = json.loads(Path(script_path).read_text())
    # Like vLLM: an engine process of its own, here one that even leaves the process group.
    child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    with Path(f"{script_path}.pids").open("a") as file:
        file.write(f"{os.getpid()} {child.pid} ")
    if script.get("family"):
        core = start("EngineCore", run_core, script_path, script.get("deaf", False))
        if not script.get("deaf"):
            threading.Thread(target=watch, args=(core,), daemon=True).start()
    starts = Path(f"{script_path}.starts")
    starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
    if len(starts.read_text()) <= script.get("ports_taken", 0):
        sys.exit("OSError: [Errno 98] Address already in use")
    if script.get("boot") == "hang":
        time.sleep(3600)
    if "boot" in script:
        sys.exit(script["boot"])
    config = json.loads(flags[flags.index("--additional-config") + 1])
    Handler.engine = Engine(script, config)
    signal.signal(signal.SIGTERM, Handler.engine.end)
    port = int(flags[flags.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
