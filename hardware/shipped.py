"""Where the TOML files are: a shipped name or a path -> the file; errors learn their file."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from hardware.errors import InputError
from hardware.reader import Table
from hardware.spelling import did_you_mean

DATA = Path(__file__).parent / "data"


def names_of(kind: str) -> tuple[str, ...]:
    """The names shipped in data/<kind>, sorted."""
    return tuple(sorted(path.stem for path in (DATA / kind).glob("*.toml")))


def gpu_aliases() -> dict[str, tuple[str, ...]]:
    """The other names of each shipped GPU, as tables of measured runs write them."""
    table = Table.load(DATA / "aliases.toml").table("also_called")
    names = table.keys()
    return {name: table.texts(name) for name in names}


def shipped_gpu(name: str) -> str | None:
    """The GPU shipped that is called `name`, by its own name or another; None if there is none."""
    return _gpus_by_name().get(_folded(name))


def default_cluster(gpu: str) -> str:
    """The shipped cluster to take when only the GPU is known, by its shipped name."""
    return Table.load(DATA / "aliases.toml").table("default_cluster").text(gpu)


@cache
def _gpus_by_name() -> dict[str, str]:
    names = {_folded(name): name for name in names_of("gpus")}
    return names | {_folded(other): name for name, others in gpu_aliases().items() for other in others}


def _folded(name: str) -> str:
    text = re.sub(r"[\s_-]+", "-", name.strip().casefold())
    text = re.sub(r"^((nvidia|amd|instinct)-)+", "", text)
    return re.sub(r"(?<=\d)gb(?=-|$)", "g", text)


def unknown(kind: str, what: str, name: str) -> str:
    """What to say of a name that is not shipped: the nearest one, other names of GPUs included, and all."""
    names = names_of(kind)
    more = [other for others in gpu_aliases().values() for other in others] if kind == "gpus" else []
    hint = did_you_mean(name, (*names, *more))
    gpu = shipped_gpu(name) if kind == "clusters" else None
    if gpu:
        hint = f"; a cluster of {gpu} is {default_cluster(gpu)!r}"
    return f"unknown {what} {name!r}{hint or ';'} known: {', '.join(names)}"


def find(kind: str, what: str, name: str, near: Path | None, *, shipped: tuple[Table, str] | None = None) -> Path:
    """The file of a shipped name or of a path, which is relative to the folder `near`. A GPU has other names, too.

    `shipped` = (table, key) allows shipped names only and puts the place of the name into the error.
    """
    names = names_of(kind)
    if name in names:
        return DATA / kind / f"{name}.toml"
    looks_like_path = name.endswith(".toml") or "/" in name or "\\" in name
    path = Path(name) if near is None else near / name
    if shipped is None and (looks_like_path or os.path.isfile(path)):
        return path
    if kind == "gpus" and (gpu := shipped_gpu(name)):
        return DATA / kind / f"{gpu}.toml"
    message = unknown(kind, what, name)
    if shipped is not None:
        table, key = shipped
        raise table.error(key, message)
    raise InputError(f"{message}; or a path to a TOML file")


@contextmanager
def in_file(table: Table) -> Iterator[None]:
    """Errors of a dataclass's own check name the key; here they get their file and the path of the table."""
    try:
        yield
    except InputError as error:
        where = f"{table.path}." if table.path else ""
        raise InputError(f"{table.file}: {where}{error}") from None
