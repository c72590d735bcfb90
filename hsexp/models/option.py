"""`model=PATH` on a command line: the model becomes an option that Hydra finds like any other.

The option is written below the user's cache, so that `--cfg job`, sweeps and further overrides
(`model.max_model_tokens=8192`) work as with an option of `conf/model`.
"""

import tempfile
from collections.abc import Iterable
from pathlib import Path

import yaml

from hsexp.config.base import ConfigError
from hsexp.config.catalog import standing_options
from hsexp.models.naming import is_config
from hsexp.user_cache import cache_folder

_KEY = "model"
_SEARCH_PATH = "hydra.searchpath"


def names_path(argument: str) -> bool:
    """Whether this is `model=PATH`, and not an option of `conf/model`."""
    key, _, value = argument.partition("=")
    return key == _KEY and value not in standing_options(_KEY) and is_config(value)


def with_options(arguments: Iterable[str]) -> list[str]:
    """The arguments, with a path in `model=PATH` replaced by the name of an option.

    Raises:
        ConfigError: the model cannot be read, or the command line has a search path of its own.
    """
    given = list(arguments)
    paths = {place: word.partition("=")[2] for place, word in enumerate(given) if names_path(word)}
    if not paths:
        return given
    if any(word.lstrip("+").startswith(f"{_SEARCH_PATH}=") for word in given):
        raise ConfigError(
            f"model={next(iter(paths.values()))} cannot be combined with {_SEARCH_PATH}; use "
            "--config-dir for your own options"
        )
    folders = []
    for place, value in paths.items():
        folder, name = _write(value)
        given[place] = f"{_KEY}={name}"
        folders.append(f"'file://{folder}'")
    # Beside the model: Hydra wants all overrides together, in front of flags or behind them.
    given.insert(max(paths) + 1, f"{_SEARCH_PATH}=[{','.join(folders)}]")
    return given


def _write(given: str) -> tuple[Path, str]:
    """Write the option of a model. Returns its search path, named by contents, and its name.

    Raises:
        ConfigError: the model cannot be read, or its name is one of `conf/model`.
    """
    from hsexp.models.reading import read_model  # as late as here: few commands name a model so
    from hsexp.plan.cells import content_key

    model = read_model(given)
    if model.name in standing_options(_KEY):
        raise ConfigError(
            f"model={given} has the name of conf/model/{model.name}.yaml; rename its folder"
        )
    shape = model.model_dump(mode="json") | {"checkpoint": _checkpoint(given)}
    if model.weights is not None:
        shape["weights"] = model.weights.model_dump(mode="json")
    else:
        shape["weights_unknown"] = model.weights_unknown
    text = yaml.safe_dump(shape, sort_keys=False)
    folder = cache_folder() / "models" / content_key({"option": text})
    path = folder / _KEY / f"{model.name}.yaml"
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", dir=path.parent, delete=False
            ) as file:
                file.write(text)
            Path(file.name).replace(path)
        except OSError as error:
            raise ConfigError(f"model={given}: {path} cannot be written: {error}") from None
    return folder, model.name


def _checkpoint(given: str) -> str | None:
    """Where a real engine finds the weights: the folder, or the id."""
    path = Path(given).expanduser()
    if path.is_dir():
        return str(path.absolute())
    return None if path.is_file() else given
