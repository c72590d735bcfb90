"""vLLM's server for one measured cell: `python -m runners.vllm.api_server FLAGS ...`

It is vLLM's own server without vLLM's command line, whose start fails in the CPU build of 0.27.1.
Two things differ.

- It dies with the guard, and so does every process that it starts, and the guard knows them all:
  `spawn` imports this module at the start of each of them, long before vLLM.
- `POST /reset_prefix_cache` empties the prefix cache behind the warm-up. vLLM has this route in its
  developer mode alone, beside routes that call any method of the workers; that mode stays off.
"""

import os
from collections.abc import Callable
from typing import Any

from hsexp.descent import die_with_parent
from runners.vllm import family

if __name__ in ("__main__", "__mp_main__"):
    die_with_parent(os.getppid())
if __name__ == "__mp_main__":
    family.join()


def main() -> None:
    """Serve until a signal ends the server."""
    import uvloop
    from vllm.entrypoints.openai import api_server
    from vllm.entrypoints.openai.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    cli_env_setup()
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args()
    validate_parsed_serve_args(arguments)
    api_server.build_app = with_reset(api_server.build_app)
    uvloop.run(api_server.run_server(arguments))


def with_reset(stock: Callable[..., Any]) -> Callable[..., Any]:
    """`build_app` with the one route of the developer mode that a measured run needs."""

    def build_app(*args: Any, **kwargs: Any) -> Any:
        from vllm.entrypoints.serve.dev.cache.api_router import reset_prefix_cache

        app = stock(*args, **kwargs)
        app.post("/reset_prefix_cache")(reset_prefix_cache)
        return app

    return build_app


if __name__ == "__main__":
    main()
