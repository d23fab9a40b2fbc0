"""One Hugging Face config.json: its keys, and the readers of which hf_families.py builds each family's entry."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hardware.errors import InputError

_REQUIRED: Any = object()
_OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "n_embed"),
    "num_hidden_layers": ("n_layer",),
    "num_attention_heads": ("n_head",),
    "max_position_embeddings": ("n_positions",),
    "num_local_experts": ("num_experts",),
    "num_experts": ("num_local_experts",),
    "num_nextn_predict_layers": ("num_mtp_layers",),
}
"""Names of a key in other families or other releases of a family (`attribute_map` of the configuration classes)."""


@dataclass(frozen=True, slots=True)
class Config:
    """The keys of one config.json, and which were `read`. Every error is an InputError, one line with file and key."""

    path: Path
    family: str
    keys: Mapping[str, Any]
    read: set[str] = field(default_factory=set)

    def integer(self, key: str, default: int = _REQUIRED, null: int = _REQUIRED) -> int:
        """Integer at `key`; `default` if the key is absent, `null` (else `default`) if its value is null."""
        value = self._get(key, default, null)
        if type(value) is not int:
            raise self.error(f"{key!r} must be an integer, got {value!r}")
        return value

    def flag(self, key: str, default: bool = _REQUIRED) -> bool:
        """Boolean at `key`; `default` if the key is absent or null."""
        value = self._get(key, default, _REQUIRED)
        if type(value) is not bool:
            raise self.error(f"{key!r} must be true or false, got {value!r}")
        return value

    def text(self, key: str, default: str) -> str:
        """Text at `key`; `default` if the key is absent or null."""
        value = self._get(key, default, _REQUIRED)
        if type(value) is not str:
            raise self.error(f"{key!r} must be a text, got {value!r}")
        return value

    def integers(self, key: str) -> list[int]:
        """List of integers at `key`; empty if the key is absent or null."""
        value = self._get(key, [], _REQUIRED)
        if type(value) is not list or any(type(item) is not int for item in value):
            raise self.error(f"{key!r} must be a list of integers, got {value!r}")
        return value

    def texts(self, key: str) -> list[str]:
        """List of texts at `key`; empty if the key is absent or null."""
        value = self._get(key, [], _REQUIRED)
        if type(value) is not list or any(type(item) is not str for item in value):
            raise self.error(f"{key!r} must be a list of texts, got {value!r}")
        return value

    def error(self, message: str) -> InputError:
        """The error to raise for this file."""
        return InputError(f"{self.path}: {message} (model_type {self.family!r})")

    def _get(self, key: str, default: Any, null: Any) -> Any:
        names = [name for name in (key, *_OTHER_NAMES.get(key, ())) if name in self.keys]
        self.read.update(names)
        value = self.keys[names[0]] if names else default
        if value is None:
            value = default if null is _REQUIRED else null
        if value is _REQUIRED:
            raise self.error(f"missing key {key!r}")
        return value


Reader = Callable[[Config], int | bool | str | tuple[int, ...]]


def integer(key: str, default: int = _REQUIRED, null: int = _REQUIRED) -> Reader:
    """Reader of the integer at `key`."""
    return lambda config: config.integer(key, default, null)


def flag(key: str, default: bool = _REQUIRED) -> Reader:
    """Reader of the boolean at `key`."""
    return lambda config: config.flag(key, default)


def fixed(value: int | bool | str) -> Reader:
    """Reader of a value that the family's code fixes."""
    return lambda config: value


def load(path: Path) -> dict[str, Any]:
    """The JSON object in the file."""
    try:
        keys = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a JSON file: {error}") from None
    if not isinstance(keys, dict):
        raise InputError(f"{path}: expected a JSON object, got {type(keys).__name__}")
    return keys
