"""hsexp -sc install=bash|zsh|fish, uninstall=SHELL, query=SHELL

Shell completion of the command: `eval "$(hsexp -sc install=bash)"`. Hydra's own knows groups,
options and fields. This adds the verbs, what each of them takes, and the values of a field that
has few, and it imports nothing that a launch needs.
"""

import ast
import os
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Literal, get_args, get_origin

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.completion_plugin import CompletionPlugin, DefaultCompletionPlugin

from hsexp.config.base import ConfigError
from hsexp.config.catalog import CONF, options
from hsexp.verbs import VERBS

_APP = re.compile(r"^\s*(?:\S*python[\d.]*\s+-m\s+)?\S+\s?")
"""How the command line starts: `hsexp`, or `python -m hsexp`."""
_SEPARATORS = {"fish": "\n"}
"""What a shell splits the words by, if not by a space."""


def main(arguments: Sequence[str]) -> int:
    """
    Raises:
        ConfigError: the shell is none that Hydra knows.
    """
    sys.argv[0] = "hsexp"  # also where Python was started with -m
    asked = [argument for argument in arguments if "=" in argument]
    task, _, shell = asked[0].partition("=") if len(asked) == 1 else ("", "", "")
    if task not in ("install", "uninstall", "query") or shell not in _shells():
        raise ConfigError(
            f"-sc takes install=, uninstall= or query= with one of {', '.join(_shells())}"
        )
    if task == "query":
        line = os.environ.get("COMP_LINE", "")
        sys.stdout.write(_SEPARATORS.get(shell, " ").join(complete(line)) + "\n")
    else:
        sys.stdout.write(_of_hydra(asked[0]))
    return 0


def complete(line: str) -> list[str]:
    """Every way in which the last word of a command line may go on."""
    typed = _APP.sub("", line, count=1)
    words = typed.split()
    word = "" if not words or typed[-1].isspace() else words.pop()
    if words and words[0] in VERBS:
        return _of_verb(words[0], word)
    verbs = [] if words else [verb for verb in VERBS if verb.startswith(word)]
    key, equals, value = word.partition("=")
    if equals and (values := _values(key)):
        return [f"{key}={each}" for each in values if each.startswith(value)]
    given = " ".join(["hsexp", *words, word])
    return sorted({*verbs, *_of_hydra("query=bash", given).split()})


def _of_verb(verb: str, word: str) -> list[str]:
    """Keys that the usage of a verb names, or the options of a key that is a group."""
    key, equals, value = word.partition("=")
    if equals:
        return [f"{key}={name}" for name in options(key) if name.startswith(value)]
    if "/" in word or word.startswith("."):
        return CompletionPlugin.complete_files(word)
    keys = dict.fromkeys(re.findall(r"(?<![\w.])(\w+)=", _usage(VERBS[verb].module)))
    files = CompletionPlugin.complete_files(word) if verb == "verify" else []
    return [*(f"{key}=" for key in keys if key.startswith(word)), *files]


def _usage(module: str) -> str:
    """The documentation at the head of a program, which is not imported."""
    found = find_spec(module)
    assert found is not None and found.origin is not None, module
    path = Path(found.origin)
    path = path.with_name("__main__.py") if path.name == "__init__.py" else path
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def _values(key: str) -> tuple[str, ...]:
    """The values of a field of a launch that has few."""
    from hsexp.config.launch import Launch

    field = Launch.model_fields.get(key)
    if field is None:
        return ()
    if field.annotation is bool:
        return ("false", "true")
    is_choice = get_origin(field.annotation) is Literal
    return tuple(map(str, get_args(field.annotation))) if is_choice else ()


def _of_hydra(task: str, line: str = "") -> str:
    """What Hydra prints; nothing where the line cannot be composed."""
    os.environ["COMP_LINE"] = line
    out = StringIO()
    try:
        with (
            redirect_stdout(out),
            redirect_stderr(StringIO()),
            initialize_config_dir(config_dir=str(CONF), version_base="1.3"),
        ):
            hydra = GlobalHydra.instance().hydra
            assert hydra is not None
            hydra.shell_completion(config_name="config", overrides=[task])
    except Exception:  # whatever was typed so far: a shell that completes shows no error
        return ""
    return out.getvalue()


def _shells() -> list[str]:
    plugins = Plugins.instance().discover(CompletionPlugin)
    return sorted(
        plugin.provides()
        for plugin in plugins
        if issubclass(plugin, CompletionPlugin) and plugin is not DefaultCompletionPlugin
    )
