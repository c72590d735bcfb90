"""The weights of a cell: found, downloaded or made from a seed, and checked."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hsexp.config.base import ConfigError
from hsexp.plan.run import VllmRunConfig


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights on this machine."""

    name: str
    """Their name in the ledger, never a path of this machine."""
    folder: Path
    vocabulary: int


def weights_of(config: VllmRunConfig) -> Weights:
    """Find the weights, or make seeded ones.

    Raises:
        ConfigError: the model's shape has no seeded weights, or a file is not the expected one.
        OSError: there are no such weights.
    """
    if config.checkpoint is None and config.seeded_width is not None:
        from hsexp.engine.full_width import config_folder

        folder, name = config_folder(config.model, config.seeded_width), "seeded at full width"
    elif config.checkpoint is None:
        from hsexp.engine.mini import seeded_weights

        folder, name = seeded_weights(config.model), "seeded"
    elif Path(config.checkpoint).is_dir():
        folder = Path(config.checkpoint)
        name = folder.name
    else:
        from huggingface_hub import snapshot_download

        name = config.checkpoint
        folder = Path(snapshot_download(name, revision=config.checkpoint_revision))
    _require_digests(config, folder)
    shape = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return Weights(name=name, folder=folder, vocabulary=shape["vocab_size"])


def require_checkpoints(configs: Iterable[VllmRunConfig]) -> None:
    """Find every checkpoint of a launch, or download it, before anything is written or started.

    Raises:
        ConfigError: names the checkpoint, the reason, and what to type instead.
    """
    of_checkpoint = {config.checkpoint: config for config in configs}
    for checkpoint, config in of_checkpoint.items():
        if checkpoint is None:
            continue  # seeded weights need no network
        try:
            weights_of(config)
        except ConfigError:
            raise
        except (OSError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise ConfigError(
                f"model.checkpoint {checkpoint} cannot be used: {reason}; model.checkpoint=DIR "
                "names a folder with the weights, and model.checkpoint=null uses seeded ones"
            ) from error


def _require_digests(config: VllmRunConfig, folder: Path) -> None:
    """Compare the files that the model's configuration names.

    Raises:
        ConfigError: a file is missing or has other contents.
    """
    expected = config.checkpoint_sha256 or {}
    found = file_digests(folder) if expected else {}
    for name, digest in expected.items():
        if found.get(name) != digest:
            raise ConfigError(
                f"model.checkpoint_sha256.{name} must be {digest}, got "
                f"{found.get(name, 'no such file')} in {config.checkpoint}"
            )


def file_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file in a folder of weights: configuration and tokenizer included."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return {path.name: _digest(path, path.stat().st_mtime_ns) for path in files}


@lru_cache(maxsize=1024)
def _digest(path: Path, mtime_ns: int) -> str:
    """Read an unchanged file once: weights are gigabytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
