"""vLLM's `serve` command, called with a list of arguments.

vLLM's own program does not start where vLLM is installed under the name of its CPU build, so this
calls the command directly.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser

from hsexp.config.base import ConfigError, describe_errors
from hsexp.engine.settings import EngineSettings


def serve(arguments: list[str]) -> None:
    """`vllm serve` with these arguments; returns when the server has shut down.

    Raises:
        ConfigError: the organization or the model cannot be served; nothing was loaded.
    """
    cli_env_setup()
    command, parsed = _parse(arguments)
    with _refused_by_vllm():
        command.cmd(parsed)


def settings_for(arguments: list[str]) -> EngineSettings:
    """The settings that these arguments resolve to; loads no weights and starts nothing.

    Raises:
        ConfigError: the organization or the model cannot be served.
    """
    _, parsed = _parse(arguments)
    parsed.model = parsed.model_tag
    with _refused_by_vllm():
        args = AsyncEngineArgs.from_cli_args(parsed)
        config = args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    return EngineSettings.of(config.additional_config)


@contextmanager
def _refused_by_vllm() -> Iterator[None]:
    """Turn vLLM's refusals of a setting or of a model's name into ours, on one line.

    Raises:
        ConfigError: with vLLM's reason.
    """
    try:
        yield
    except ValidationError as error:
        raise ConfigError(describe_errors(error, None).replace("\n", "; ")) from None
    except OSError as error:
        if error.errno is not None:  # a fault of the system, not a name that nobody knows
            raise
        raise ConfigError(f"model cannot be loaded: {' '.join(str(error).split())}") from None


def _parse(arguments: list[str]) -> tuple[ServeSubcommand, argparse.Namespace]:
    command, parser = ServeSubcommand(), FlexibleArgumentParser(description="vLLM CLI")
    command.subparser_init(parser.add_subparsers(dest="subparser"))
    parsed = parser.parse_args([command.name, *arguments])
    command.validate(parsed)
    return command, parsed
