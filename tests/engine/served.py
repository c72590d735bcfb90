"""vLLM's OpenAI-compatible server in a process group of its own, spoken to over HTTP."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

BOOT_S = 400.0
"""A busy machine takes minutes to load vLLM in three processes."""
END_S = 60.0

ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


class Server:
    """One server; `module` is what `python -m` runs."""

    def __init__(self, module: str, arguments: list[str], folder: Path, port: int) -> None:
        self.url, self._log = f"http://127.0.0.1:{port}", folder / "server.log"
        with self._log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | ENVIRONMENT,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + BOOT_S
        while True:
            assert self.process.poll() is None, self.log[-5000:]
            assert time.monotonic() < deadline, self.log[-5000:]
            try:
                self.get("/health")
                return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.2)

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            text: str = answer.read().decode()
            return text

    def post(self, path: str, body: dict[str, Any]) -> str:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            text: str = answer.read().decode()
            return text

    def complete(self, model: str, prompt: list[int], max_tokens: int) -> list[int]:
        """Greedy token ids."""
        answer = json.loads(
            self.post(
                "/v1/completions",
                {
                    "model": model,
                    "prompt": prompt,
                    "max_tokens": max_tokens,
                    "temperature": 0,
                    "ignore_eos": True,
                    "return_token_ids": True,
                },
            )
        )
        tokens: list[int] = answer["choices"][0]["token_ids"]
        return tokens

    def samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        """(labels, value) of a metric."""
        return [
            (sample.labels, sample.value)
            for family in text_string_to_metric_families(self.get("/metrics"))
            for sample in family.samples
            if sample.name == name
        ]

    def value(self, name: str, **labels: str) -> float:
        (value,) = (value for found, value in self.samples(name) if labels.items() <= found.items())
        return value

    def end(self) -> tuple[int, list[psutil.Process]]:
        """Ask it to end. Returns its exit code and what it leaves running."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(END_S)
        _, left = psutil.wait_procs(children, timeout=END_S)
        return code, left

    def kill(self) -> None:
        """Whatever is left of its process group."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
