"""A model's shape from its config.json: plain JSON, without transformers and without weights."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hsexp.config.base import ConfigError, parse_union
from hsexp.memory.geometry import AnyModel, ModelShape
from hsexp.models.document import Document
from hsexp.models.known import FAMILIES
from hsexp.models.weights import read_weights

_FILE = "config.json"


def read_model(given: str, *, changes: Mapping[str, Any] | None = None) -> ModelShape:
    """The shape of a model.

    Args:
        given: a folder with a config.json, such a file, or an id that is in the local cache.
        changes: fields of the shape that differ from the file's.

    Raises:
        ConfigError: there is no such file, it lacks a field, its architecture is not known, or it
            is not a hybrid.
    """
    path = _find(given)
    fields = _load(path)
    top = Document(fields, source=str(path))
    if isinstance(fields.get("text_config"), Mapping):
        top = top.part("text_config")  # the language model of a multimodal one
    kind = top.text("model_type", str(fields.get("model_type", "")))
    if kind not in FAMILIES:
        raise ConfigError(
            f"{path}: model_type {kind!r} is not a hybrid that is known here; known are "
            f"{', '.join(sorted(FAMILIES))}"
        )
    family = FAMILIES[kind]
    shape = {
        "name": re.sub(r"[^A-Za-z0-9_.+-]", "_", _name(given, path)),
        "d0_attention_fraction": None,
        **family.shape(top),
        **(changes or {}),
    }
    model: ModelShape = parse_union(AnyModel, shape, path="model")
    try:
        return model.model_copy(update={"weights": read_weights(top, family.weights, model)})
    except ConfigError as error:
        return model.model_copy(update={"weights_unknown": str(error)})


def _load(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"model: {path} cannot be read: {error}") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"model: {path} must hold a JSON object")
    return fields


def _find(given: str) -> Path:
    path = Path(given).expanduser()
    if path.is_dir():
        path /= _FILE
    if path.is_file():
        return path
    cached = _in_cache(given)
    if cached is not None:
        return cached
    raise ConfigError(
        f"model: there is no {path}, and the local cache of Hugging Face has no model {given!r}"
    )


def _in_cache(model_id: str) -> Path | None:
    """The newest snapshot's config.json of an id, as `huggingface_hub` stores it."""
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()
    snapshots = hub / f"models--{model_id.replace('/', '--')}" / "snapshots"
    found = sorted(snapshots.glob(f"*/{_FILE}"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None


def _name(given: str, path: Path) -> str:
    """The last part of an id or of a folder; that of a file called otherwise is its stem."""
    if path.name != _FILE:
        return path.stem
    return Path(given).name if Path(given).name != _FILE else path.absolute().parent.name
